"""The meaning of tensor expressions: a NumPy interpreter, vectorised over whole axes.

Every scalar expression becomes an array that spans only the axes it depends on (the others have the
extent 1), so that invariant parts are computed once. Loads whose indices are affine in the axes are
strided views without a copy. Sums of products go to BLAS
(`tunefarm.compiler.kernels.evaluate_product`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from tunefarm.compiler.expr.affine import linear
from tunefarm.compiler.expr.combiners import COMBINERS, neutral_element
from tunefarm.compiler.expr.functions import BINARY, UNARY
from tunefarm.compiler.expr.nodes import Binary, Cast, Const, Expr, Index, Load, Select, Unary
from tunefarm.compiler.expr.walk import axes_of, children, postorder
from tunefarm.compiler.kernels.evaluate_product import contract, sum_factors
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.recurrence import Recurrence, recurrence_of
from tunefarm.compiler.kernels.running import RunningReduction, running_reduction
from tunefarm.compiler.kernels.scatter import SearchedUpdates, searched_updates
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

_Values: TypeAlias = npt.NDArray[Any]

# The most elements of an intermediate array; beyond it an axis is cut in two. Pointwise
# chunks stay in the cache; matrix products want large operands.
MAXIMUM_GRID = 2**20
MAXIMUM_FACTOR = 2**23


def evaluate_kernel(
    kernel: FusedKernel, inputs: Mapping[str, Array], *, accumulate_double: bool = True
) -> Array:
    """The kernel's output for inputs by buffer name, as a new C-contiguous array.

    With `accumulate_double`, what is accumulated in f32 is accumulated in f64 and rounded once.
    Loads outside of a tensor (on the side of a select that is not taken) are clamped. Raises
    `ValueError` when an input is missing or has another shape or element type than its buffer.
    """
    tensors: dict[str, Array] = {}
    for buffer in kernel.inputs:
        array = inputs.get(buffer.name)
        if array is None:
            raise ValueError(f"kernel {kernel.name}: input {buffer.name} is missing")
        if array.shape != buffer.shape or array.dtype != buffer.dtype.numpy:
            found = f"{array.dtype}{list(array.shape)}"
            raise ValueError(f"kernel {kernel.name}: {buffer.name} is {buffer.type}, not {found}")
        tensors[buffer.name] = array
    with np.errstate(all="ignore"):
        recurrence = recurrence_of(kernel)
        walked = () if recurrence is None else recurrence.stages
        for stage in kernel.stages:
            if stage.name not in walked:
                tensors[stage.name] = evaluate_stage(stage, tensors, accumulate_double)
        if recurrence is not None:
            _walk(kernel, recurrence, tensors, accumulate_double)
    return tensors[kernel.output.name]


def _walk(
    kernel: FusedKernel, recurrence: Recurrence, tensors: dict[str, Array], accumulate_double: bool
) -> None:
    """The stages that are computed step by step, into `tensors`."""
    stages = [kernel.stage(name) for name in recurrence.stages]
    for stage in stages:
        tensors[stage.name] = np.zeros(stage.shape, stage.dtype.numpy)
    for position in range(recurrence.extent):
        for stage in stages:
            place = tuple(
                slice(position, position + 1) if axis.name == recurrence.axis else slice(None)
                for axis in stage.axes
            )
            now = recurrence.step(stage, position)
            tensors[stage.name][place] = evaluate_stage(now, tensors, accumulate_double)


def evaluate_stage(stage: Stage, tensors: Mapping[str, Array], accumulate_double: bool) -> Array:
    """The result of one stage, given the tensors that it loads from."""
    ranges = {axis.name: range(axis.extent) for axis in (*stage.axes, *stage.reduce_axes)}
    if not stage.reduce_axes:
        return _evaluate_pointwise(stage, tensors, ranges)
    rounds = COMBINERS[stage.combiner].rounds and stage.accumulates is DType.F32
    accumulator = DType.F64 if rounds and accumulate_double else stage.accumulates
    running = running_reduction(stage)
    if running is not None:
        return _run(stage, running, tensors, accumulator)
    searched = searched_updates(stage)
    if searched is not None:
        return _updated(stage, searched, tensors, accumulator)
    neutral = neutral_element(stage.combiner, accumulator)
    result = np.full(stage.shape, neutral.value, accumulator.numpy)
    _accumulate(stage, tensors, ranges, accumulator, result)
    return result.astype(stage.dtype.numpy, copy=False)


# --- pointwise and reduction stages, in chunks --------------------------------------------------


def _evaluate_pointwise(
    stage: Stage, tensors: Mapping[str, Array], ranges: Mapping[str, range]
) -> Array:
    result = np.empty(stage.shape, stage.dtype.numpy)
    names = [axis.name for axis in stage.axes]
    for chunk in _chunks(ranges, names, MAXIMUM_GRID):
        target = _part(result, chunk, names)
        target[...] = _Evaluator(names, chunk, tensors).evaluate(stage.body)
    return result


def _run(
    stage: Stage, running: RunningReduction, tensors: Mapping[str, Array], accumulator: DType
) -> Array:
    """A running reduction, along its axis once."""
    combiner = COMBINERS[stage.combiner]
    axis = [item.name for item in stage.axes].index(running.axis)
    walked = running.walked(stage)
    ranges = {item.name: range(item.extent) for item in stage.axes}
    terms = _evaluate_pointwise(walked, tensors, ranges).astype(accumulator.numpy)
    if running.exclusive:
        neutral = neutral_element(stage.combiner, accumulator)
        terms = np.roll(terms, 1, axis)
        terms[(slice(None),) * axis + (0,)] = neutral.value
    result = combiner.array.accumulate(terms, axis=axis, dtype=accumulator.numpy)
    if running.reverse:
        result = np.flip(result, axis)
    return np.ascontiguousarray(result, stage.dtype.numpy)


def _updated(
    stage: Stage, searched: SearchedUpdates, tensors: Mapping[str, Array], accumulator: DType
) -> Array:
    """A search for updates, along these once: each joins what is at its position."""
    along = [axis.name for axis in stage.axes].index(searched.axis)
    axes = tuple(
        searched.updates if position == along else axis for position, axis in enumerate(stage.axes)
    )
    ranges = {axis.name: range(axis.extent) for axis in axes}
    walked = replace(stage, axes=axes, reduce_axes=(), combiner="")
    found = _evaluate_pointwise(replace(walked, body=searched.position), tensors, ranges)
    places = found.astype(np.int64)
    values = _evaluate_pointwise(replace(walked, body=searched.value), tensors, ranges)
    inside = (places >= 0) & (places < stage.shape[along])
    positions = list(np.nonzero(inside))
    positions[along] = places[inside]
    result = np.full(stage.shape, searched.missed.value, accumulator.numpy)
    terms = values[inside].astype(accumulator.numpy)
    COMBINERS[stage.combiner].array.at(result, tuple(positions), terms)
    return result.astype(stage.dtype.numpy, copy=False)


def _part(result: _Values, chunk: Mapping[str, range], names: Sequence[str]) -> _Values:
    """The part of a stage's result that a chunk computes, as a view (also of a scalar)."""
    key: tuple[Any, ...] = tuple(slice(chunk[name].start, chunk[name].stop) for name in names)
    return np.asarray(result[(*key, ...)])


def _chunks(
    ranges: Mapping[str, range], grid: Sequence[str], maximum: int
) -> Iterator[Mapping[str, range]]:
    """Split `ranges` along the outermost axes until the grid of axes `grid` is small enough."""
    size = math.prod(len(ranges[name]) for name in grid)
    if size <= maximum:
        yield ranges
        return
    name = next(name for name in grid if len(ranges[name]) > 1)
    whole = ranges[name]
    middle = (whole.start + whole.stop) // 2
    for half in (range(whole.start, middle), range(middle, whole.stop)):
        yield from _chunks({**ranges, name: half}, grid, maximum)


def _accumulate(
    stage: Stage,
    tensors: Mapping[str, Array],
    ranges: Mapping[str, range],
    accumulator: DType,
    result: _Values,
) -> None:
    """Combine the stage's reduction over `ranges` into `result`."""
    outer = [axis.name for axis in stage.axes]
    reduced = [axis.name for axis in stage.reduce_axes]
    names = outer + reduced
    if not all(len(ranges[name]) for name in names):
        return
    factors = sum_factors(stage.body) if stage.combiner == "sum" else (stage.body,)
    largest = max(
        ([name for name in names if name in axes_of(factor)] for factor in factors),
        key=lambda used: math.prod(len(ranges[name]) for name in used),
    )
    product = len(factors) > 1
    grid, maximum = (largest, MAXIMUM_FACTOR) if product else (names, MAXIMUM_GRID)
    for chunk in _chunks(ranges, grid, maximum):
        evaluator = _Evaluator(names, chunk, tensors)
        target = _part(result, chunk, outer)
        if product:
            arrays = [evaluator.evaluate(factor) for factor in factors]
            extents = tuple(len(chunk[name]) for name in names)
            target += contract(arrays, extents, len(outer), accumulator.numpy)
        else:
            body = evaluator.evaluate(stage.body)
            full = np.broadcast_to(body, tuple(len(chunk[name]) for name in names))
            inner = tuple(range(len(outer), len(names)))
            function = COMBINERS[stage.combiner].array
            part = function.reduce(full, axis=inner, dtype=accumulator.numpy)
            target[...] = function(target, part)


# --- expressions --------------------------------------------------------------------------------


class _Evaluator:
    """Evaluates expressions over a grid: arrays have one dimension per axis of `names`.

    Parts that occur several times as the same object are evaluated once.
    """

    def __init__(
        self, names: Sequence[str], ranges: Mapping[str, range], tensors: Mapping[str, Array]
    ) -> None:
        self._names = names
        self._ranges = ranges
        self._tensors = tensors
        self._values: dict[int, _Values] = {}
        self._kept: list[Expr] = []  # so that no identity in `_values` is used again

    def evaluate(self, expression: Expr) -> _Values:
        """The expression's value, with the extent 1 along axes that it does not depend on."""
        self._kept.append(expression)
        for node in postorder(expression):
            if id(node) not in self._values:
                operands = [self._values[id(operand)] for operand in children(node)]
                self._values[id(node)] = self._compute(node, operands)
        return self._values[id(expression)]

    def _compute(self, node: Expr, operands: Sequence[_Values]) -> _Values:
        match node:
            case Const():
                return np.full((1,) * len(self._names), node.value, node.dtype.numpy)
            case Index():
                shape = [-1 if axis == node.name else 1 for axis in self._names]
                values = self._ranges[node.name]
                return np.arange(values.start, values.stop, dtype=np.int64).reshape(shape)
            case Load():
                return self._load(node, operands)
            case Unary():
                return UNARY[node.op].evaluate(operands[0])
            case Binary():
                return BINARY[node.op].evaluate(operands[0], operands[1])
            case Select():
                return np.where(*operands)
            case Cast():
                return converted(operands[0], node.dtype)
        raise TypeError(f"{type(node).__name__} is no scalar expression")

    def _load(self, load: Load, positions: Sequence[_Values]) -> _Values:
        tensor = self._tensors[load.buffer]
        if not load.indices:
            return tensor.reshape((1,) * len(self._names))
        view = self._strided_view(tensor, load.indices)
        if view is not None:
            return view
        inside = tuple(
            np.clip(position, 0, extent - 1)
            for position, extent in zip(positions, tensor.shape, strict=True)
        )
        return np.asarray(tensor[inside])

    def _strided_view(self, tensor: Array, indices: Sequence[Expr]) -> _Values | None:
        """The loaded elements as a view; None unless all indices are affine and inside."""
        origin = []
        strides: dict[str, int] = {}
        for position, extent, stride in zip(indices, tensor.shape, tensor.strides, strict=True):
            first, terms = linear(position)
            below = above = 0
            for axis, factor in terms:
                if not isinstance(axis, str):
                    return None
                values = self._ranges[axis]
                first += factor * values.start
                reach = factor * (len(values) - 1)
                below, above = below + min(reach, 0), above + max(reach, 0)
                strides[axis] = strides.get(axis, 0) + factor * stride
            if first + below < 0 or first + above >= extent:
                return None
            origin.append(slice(first, None))
        shape = [len(self._ranges[name]) if name in strides else 1 for name in self._names]
        steps = [strides.get(name, 0) for name in self._names]
        bits = tensor.view(f"u{tensor.itemsize}") if tensor.dtype.isbuiltin == 2 else tensor
        view = as_strided(bits[tuple(origin)], shape, steps, writeable=False)
        return np.asarray(view.view(tensor.dtype))  # NumPy knows no strides of float8_e5m2
