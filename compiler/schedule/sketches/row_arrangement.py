"""How a row-wise schedule arranges the stages of a kernel round the loops of its output.

What is computed for a row before the row is written lies on the stack. Where a row is too long for
that, its elements are computed again wherever they are used, or all stages are computed one after
another, each as a whole, in workspace.

Rows are walked in vectors. Where their elements are not adjacent but those of neighbouring rows are
(softmax over the channels of images), vectors run across rows, a tile of which is computed at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from tunefarm.compiler.expr.affine import Affine, affine, expr_range
from tunefarm.compiler.expr.nodes import Expr, Index, Load, Select
from tunefarm.compiler.expr.parts import is_expensive
from tunefarm.compiler.expr.walk import axes_of, loads, postorder
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage, inline
from tunefarm.compiler.schedule.steps.placement import Inline, goes_to_output
from tunefarm.compiler.types.dtypes import DType

STACK_ELEMENTS = 16 * 1024  # a row that is kept on the stack has at most this many elements
OUTPUT_BYTES = 32 * 1024  # of a row whose elements wait in the output (measured on Zen 3)
EXPENSIVE_BYTES = 256 * 1024  # of one whose elements take longer to compute than to load again
COLUMNS = 4  # that lie side by side, at most, where a vector takes the elements of one
SHORT_ROW = 4  # elements that are worth a vector of which the rest is masked

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Ranges: TypeAlias = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the stages of a kernel are arranged round the output's loops."""

    rows: tuple[str, ...]  # output axes that the attached stages share with it
    free: tuple[str, ...]  # the other output axes, inside of the rows
    attached: tuple[str, ...]  # stages computed per row
    inlinable: tuple[str, ...]  # prologue stages without reduction
    vector: str  # the output axis that is vectorised, or ""
    split: tuple[tuple[str, str], ...]  # (stage, reduce axis) summed in lanes
    cache: bool  # the output itself is a reduction
    across: bool = False  # the vector runs across rows, and those of a tile are computed at once
    kept: int = 1  # elements of a row that lie on the stack
    in_output: tuple[str, ...] = ()  # stages whose elements lie where the output's will


def recompute_long_rows(kernel: FusedKernel, lanes: int) -> tuple[FusedKernel, tuple[Inline, ...]]:
    """Compute elements of rows that are too long for the stack anew wherever they are used.

    Softmax of long rows takes each exponential twice: for the sum, and for the quotient. Where that
    is not faster the kernel stays as it is: for one row there is workspace, and a reduction along
    an axis that is not contiguous would take the elements one by one.
    """
    rows = _rows(kernel)
    if rows is None or all(axis.extent == 1 for axis in kernel.output.axes if axis.name in rows):
        return kernel, ()
    across = _axis_across(kernel, rows, lanes)
    side = lanes if across else 1
    long = [name for name in _too_long(kernel, rows, side) if not kernel.stage(name).reduce_axes]
    if set(long) <= {*_in_output(kernel, rows, across)}:
        return kernel, ()
    inlined = kernel
    for name in reversed(long):
        stage = inlined.stage(name)
        stages = [
            replace(other, body=inline(other.body, stage))
            for other in inlined.stages
            if other is not stage
        ]
        inlined = replace(inlined, stages=tuple(stages))
    changed = [stage for stage in inlined.stages if stage.body != kernel.stage(stage.name).body]
    in_vectors = bool(across) or all(
        contiguous_reduce_axis(stage, inlined) for stage in changed if stage.reduce_axes
    )
    if not in_vectors:
        return kernel, ()
    return inlined, tuple(Inline(name) for name in reversed(long))


def arrangement_of(kernel: FusedKernel, lanes: int) -> Arrangement:
    """The arrangement for this kernel: whole rows side by side, as far as its stages allow."""
    output = kernel.output
    names = [axis.name for axis in output.axes]
    cache = bool(output.reduce_axes)
    producers = list(kernel.stages[:-1])
    reductions = [stage for stage in producers if stage.reduce_axes]
    shared = _rows(kernel)
    if shared is None:
        return Arrangement(tuple(names), (), (), _prologue(kernel), _vector(names), (), cache)
    across = _axis_across(kernel, shared, lanes)
    in_output = _in_output(kernel, shared, across)
    too_long = {*_too_long(kernel, shared, lanes if across else 1)}
    one = all(axis.extent == 1 for axis in output.axes if axis.name in shared)
    if too_long if one else too_long.difference(in_output):
        shared, across = frozenset(), ""  # each stage as a whole, in workspace
    rows = tuple(name for name in names if name in shared)
    free = tuple(name for name in names if name not in shared)
    prologue = _prologue(kernel)
    attached = tuple(s.name for s in producers if reductions and s.name not in prologue)
    if across:
        kept = max((_kept(kernel.stage(name), shared) for name in attached), default=1)
        return Arrangement(rows, free, attached, prologue, across, (), cache, True, kept)
    split = tuple(
        (stage.name, axis)
        for stage in (*reductions, *([output] if cache else []))
        if (axis := contiguous_reduce_axis(stage, kernel)) and (stage.name in attached or cache)
    )
    in_lanes = bool(split) and not free
    vector = "" if in_lanes else _vector(list(free or rows))
    return Arrangement(rows, free, attached, prologue, vector, split, cache, in_output=in_output)


def _rows(kernel: FusedKernel) -> frozenset[str] | None:
    """The output axes that all reductions share with it; None if one is read in another way."""
    rows = {axis.name for axis in kernel.output.axes}
    for stage in kernel.stages[:-1]:
        if stage.reduce_axes:
            used = _row_axes(stage, kernel.output, kernel)
            if used is None:
                return None
            rows &= used
    return frozenset(rows)


def _axis_across(kernel: FusedKernel, rows: frozenset[str], lanes: int) -> str:
    """The axis along which vectors run across rows, if they do, else "".

    Elements of rows are strided, and those of neighbouring rows adjacent in all reductions; or rows
    are shorter than any vector, and lie one behind the other.
    """
    output = kernel.output
    reductions = [stage for stage in kernel.stages if stage.reduce_axes]
    long = [axis for axis in output.axes if axis.extent > 1]
    if not long or not reductions:
        return ""
    shared = [axis for axis in long if axis.name in rows]
    if shared and _are_short(kernel, reductions, shared[-1], lanes):
        return shared[-1].name
    across = output.axes[-1]
    if across.name not in rows or across.extent < max(2, lanes // 2):
        return ""
    if output.reduce_axes and len(reductions) == 1:
        return ""
    strides = [_stride(load, across.name) for stage in reductions for load in loads(stage.body)]
    return across.name if 1 in strides and all(stride in (0, 1) for stride in strides) else ""


def _are_short(kernel: FusedKernel, reductions: list[Stage], axis: Axis, lanes: int) -> bool:
    """Rows that lie one behind the other along the axis are shorter than vectors."""
    if axis.extent < lanes:
        return False
    shapes = shapes_of(kernel)
    for stage in reductions:
        width = prod(item.extent for item in stage.reduce_axes)
        strides = {_distance(load, shapes[load.buffer], axis.name) for load in loads(stage.body)}
        if width >= short_row(lanes) or not strides <= {0, 1, width}:
            return False
    axes = kernel.output.axes
    behind = [item.extent for item in axes[axes.index(axis) + 1 :] if item.extent > 1]
    names = {item.name for item in axes}
    return (
        prod(behind) < short_row(lanes)
        and len(behind) < 2
        and all(
            item.name in names for stage in kernel.stages for item in stage.axes if item.extent > 1
        )
    )


def short_row(lanes: int) -> int:
    """Elements of a row from which on it is worth a vector."""
    return max(SHORT_ROW, lanes // 2)


def shapes_of(kernel: FusedKernel) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs and stages by name."""
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    return shapes | {stage.name: stage.shape for stage in kernel.stages}


def _distance(load: Load, shape: tuple[int, ...], axis: str) -> int:
    """How far apart in memory what is loaded lies for neighbours along an axis, as far as known."""
    form, stride = Affine(0, ()), 1
    for extent, item in zip(reversed(shape), reversed(load.indices), strict=True):
        form = form.plus(affine(item, {}), stride)
        stride *= extent
    mixed = any(not isinstance(atom, str) and axis in axes_of(atom) for atom, _ in form.terms)
    return -1 if mixed else form.coefficient(axis)


def _kept(stage: Stage, rows: frozenset[str]) -> int:
    """Elements of the stage for one row."""
    return prod(axis.extent for axis in stage.axes if axis.name not in rows)


def _too_long(kernel: FusedKernel, rows: frozenset[str], side: int) -> tuple[str, ...]:
    """Stages whose part for so many rows side by side does not fit the stack."""
    prologue = _prologue(kernel)
    if not rows or all(not stage.reduce_axes for stage in kernel.stages[:-1]):
        return ()  # nothing is computed for a row
    return tuple(
        stage.name
        for stage in kernel.stages[:-1]
        if stage.name not in prologue and _exceeds_the_stack(stage, _kept(stage, rows), side)
    )


def _in_output(kernel: FusedKernel, rows: frozenset[str], across: str) -> tuple[str, ...]:
    """Stages of long rows whose elements can lie in the output until it is computed.

    Rows on the stack are a third thing next to what is read and written that caches hold.
    """
    if across or all(not stage.reduce_axes for stage in kernel.stages[:-1]):
        return ()
    return tuple(
        stage.name
        for stage in kernel.stages[:-1]
        if goes_to_output(stage, kernel.output)
        and _kept(stage, rows) * stage.dtype.bytes >= OUTPUT_BYTES
    )


def _exceeds_the_stack(stage: Stage, elements: int, side: int) -> bool:
    if side == 1 and elements * stage.dtype.bytes <= EXPENSIVE_BYTES and is_expensive(stage.body):
        return False
    return elements * side > STACK_ELEMENTS


def _vector(names: list[str]) -> str:
    return names[-1] if names else ""


def _prologue(kernel: FusedKernel) -> tuple[str, ...]:
    """Stages without a reduction that only depend on inputs: padding, mostly."""
    stages = {stage.name for stage in kernel.stages}
    return tuple(
        stage.name
        for stage in kernel.stages[:-1]
        if not stage.reduce_axes and not any(load.buffer in stages for load in loads(stage.body))
    )


def _row_axes(stage: Stage, output: Stage, kernel: FusedKernel) -> set[str] | None:
    """Output axes that index the stage's result, where every index is a plain axis; else None."""
    result: set[str] = set()
    direct = [load for load in loads(output.body) if load.buffer == stage.name]
    if not direct:
        users = [
            other
            for other in kernel.stages[:-1]
            if any(load.buffer == stage.name for load in loads(other.body))
        ]
        shared = {axis.name for axis in stage.axes} & {axis.name for axis in output.axes}
        return shared if users else None
    for load in direct:
        for item in load.indices:
            if isinstance(item, Index):
                result.add(item.name)
            elif axes_of(item):
                return None
    return result


def contiguous_reduce_axis(stage: Stage, kernel: FusedKernel) -> str:
    """The reduce axis along which every load that depends on it is contiguous, or "".

    Or nearly so: of a few columns that lie side by side, vectors hold one each.
    """
    shapes = shapes_of(kernel)
    ranges = {axis.name: (0, axis.extent - 1) for axis in (*stage.axes, *stage.reduce_axes)}
    if stage.body.dtype is DType.BOOL:
        return ""
    for axis in reversed(stage.reduce_axes):
        if any(_is_guarded(node, axis.name, shapes, ranges) for node in postorder(stage.body)):
            continue
        strides = [_distance(load, shapes[load.buffer], axis.name) for load in loads(stage.body)]
        if strides and all(0 <= stride <= COLUMNS for stride in strides) and any(strides):
            return axis.name
    return ""


def _is_guarded(node: Expr, axis: str, shapes: Shapes, ranges: Ranges) -> bool:
    """A select along an axis one side of which reads what may not be there.

    Vectors along the axis would load it under masks.
    """
    if not isinstance(node, Select) or axis not in axes_of(node.condition):
        return False
    return any(
        isinstance(part, Load) and not _is_inside(part, shapes[part.buffer], ranges)
        for side in (node.then, node.otherwise)
        for part in postorder(side)
    )


def _is_inside(load: Load, shape: tuple[int, ...], ranges: Ranges) -> bool:
    """Whether the elements exist wherever the axes are."""
    bounds = (expr_range(item, ranges) for item in load.indices)
    return all(low >= 0 and high < n for (low, high), n in zip(bounds, shape, strict=True))


def _stride(load: Load, axis: str) -> int:
    holding = [i for i, item in enumerate(load.indices) if axis in axes_of(item)]
    if not holding:
        return 0
    if holding != [len(load.indices) - 1]:
        return 1 << 30
    return affine(load.indices[-1], {}).coefficient(axis) or 1 << 30
