"""Pass: kernels that have another form for small sizes take it where a run's sizes are small.

    relu = conv_relu(x, w)   ->   few = sizes[4] * sizes[5] < 122
                                  relu = conv_relu_few(x, w)   where few: the direct form
                                  relu = conv_relu(x, w)       where not few

Winograd's filters are four times as large as those that they are made of. Of a few tiles that is
most of what is read, and a plane of a few pixels is computed faster than it is transformed. Packed
weights are unpacked once for all rows of data: for a few rows split-integer dot products are
faster. These read the weights as the other form has them packed, which are stored once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np

from tunefarm.compiler.expr.nodes import Const, Expr, Load, add, binary, integer, mul
from tunefarm.compiler.expr.walk import transform
from tunefarm.compiler.kernels.kernel import (
    Call,
    FusedKernel,
    Guard,
    KernelBuilder,
    KernelCall,
    KernelProgram,
    ViewCall,
)
from tunefarm.compiler.kernels.winograd import blocked_conv, plane_ends
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.loops.interpret import Scalar, value_of
from tunefarm.compiler.schedule.schedule import ChooseSchedule, Schedule
from tunefarm.compiler.schedule.sketches.limb_dot import few_rows
from tunefarm.compiler.schedule.sketches.winograd_cycles import direct_below, direct_gain
from tunefarm.compiler.schedule.space import ChoiceValue, Sketch
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.schedule.steps.packing import PackLayout
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import Algorithm
from tunefarm.compiler.types.signature import SIZES, Signature
from tunefarm.compiler.types.sizes import Dimension, bounds_of
from tunefarm.compiler.types.tensor_type import TensorType

FEW: Final = "%few"
"""The value that holds for which kernels there are few pixels."""

TILES: Final = ((6, 4), (7, 3), (8, 2))
"""Pixels and vectors of channels of a register tile: as many sums as do not wait for each other, in
rows of few pixels."""

MOST_BYTES: Final = 1.2
"""Times as many bytes as an artifact without second forms has one at most."""

MOST_GAIN: Final = 0.95
"""Of the cycles that all second forms would save, as much is saved: the rest is not worth its code.
"""

Sizes: TypeAlias = tuple[int, ...]

_FORMS: Final = {Algorithm.winograd(m): m for m in (2, 4)}


@dataclass(frozen=True, slots=True)
class _Few:
    """When a kernel is computed in its form for small sizes, a condition on `SIZES`, and how.

    `gain` are the cycles that this saves at the minimum sizes, `taken` the bytes of constants that
    are stored for this form, and `grown` those of the other form beyond its constants as they are.
    """

    condition: Expr
    schedule: Schedule
    gain: float
    taken: int
    grown: int


@dataclass(frozen=True, slots=True)
class SmallSizeVariant:
    """A program with a second call for some kernels, and schedules of those that are called.

    Schedules are by workload key.
    """

    program: KernelProgram
    schedules: Mapping[str, Schedule] = field(default_factory=dict)


def small_size_variant(
    program: KernelProgram,
    signature: Signature,
    spaces: SpaceCache,
    choose: ChooseSchedule | None = None,
) -> SmallSizeVariant:
    """The program with two calls for kernels whose default schedule is not for small sizes.

    Where the minimum sizes are too large for the second form, or the maximum small enough for it,
    all stays as it is, and so does what `choose` has another schedule for.
    """
    least, most = _bounds(signature.sizes)
    if SIZES not in program.types:
        return SmallSizeVariant(program)
    weighed = _weighed(program, least, spaces, choose)
    found = _affordable(program, weighed, least, most)
    if not found:
        return SmallSizeVariant(program)
    conditions = list(dict.fromkeys(few.condition for few in found.values()))
    types, schedules = dict(program.types), {}
    calls = list(_asked(program, conditions, types))
    for number, call in enumerate(program.calls):
        if number in found and isinstance(call, KernelCall):
            few = found[number]
            flag = f"{FEW}.{conditions.index(few.condition)}"
            kernel = replace(call.kernel, name=f"{call.kernel.name}_few", sizes=least)
            own = replace(call, kernel=kernel, key=workload_key(kernel))
            schedules[own.key] = few.schedule
            calls.append(replace(own, guards=(Guard(flag, True),)))
            call = replace(call, guards=(Guard(flag, False),))
        calls.append(call)
    return SmallSizeVariant(replace(program, calls=tuple(calls), types=types), schedules)


def _bounds(sizes: Sequence[Dimension]) -> tuple[Sizes, Sizes]:
    """The minimum and maximum sizes."""
    bounds = [bounds_of(size) for size in sizes]
    return tuple(low for low, _ in bounds), tuple(high for _, high in bounds)


def _weighed(
    program: KernelProgram, least: Sizes, spaces: SpaceCache, choose: ChooseSchedule | None
) -> dict[int, _Few]:
    """The calls that may have a second form, by their numbers."""
    found = {}
    for number, call in enumerate(program.calls):
        if isinstance(call, KernelCall) and SIZES in call.inputs and not call.guards:
            few = _few(program, call, least, spaces)
            if few is not None and (choose is None or choose(call.kernel) is None):
                found[number] = few
    return found


def _affordable(
    program: KernelProgram, weighed: Mapping[int, _Few], least: Sizes, most: Sizes
) -> dict[int, _Few]:
    """Those that are of use between these sizes, as far as constants of both are not too many.

    Those that save the most for their bytes come first, and those that save little are left out.
    """
    useful = {
        number: few
        for number, few in weighed.items()
        if _at(few.condition, least) and not _at(few.condition, most)
    }
    stored = sum(array.nbytes for array in program.constants.values())
    stored += sum(few.grown for few in weighed.values())
    left = (MOST_BYTES - 1.0) * stored
    by_gain = sorted(useful.items(), key=lambda item: -item[1].gain)
    gains = accumulate((few.gain for _, few in by_gain), initial=0.0)
    enough = MOST_GAIN * sum(few.gain for few in useful.values())
    worth = [item for item, saved in zip(by_gain, gains, strict=False) if saved < enough]
    found = {}
    for number, few in sorted(worth, key=lambda item: -item[1].gain / max(1, item[1].taken)):
        if few.taken <= left:
            left -= few.taken
            found[number] = few
    return found


def _few(program: KernelProgram, call: KernelCall, least: Sizes, spaces: SpaceCache) -> _Few | None:
    """When the kernel's form for small sizes is faster than its default one, if it has one."""
    first, *others = spaces.of(call.kernel, call.key).sketches
    if first.algorithm in _FORMS:
        return _few_pixels(program, call, least, spaces, first.algorithm, others)
    return _few_rows(program, call, least, spaces.target, first, others)


def _few_pixels(
    program: KernelProgram,
    call: KernelCall,
    least: Sizes,
    spaces: SpaceCache,
    algorithm: Algorithm,
    others: Sequence[Sketch],
) -> _Few | None:
    """When the direct form of a convolution is faster than Winograd's."""
    kernel = call.kernel
    conv = blocked_conv(kernel)
    ends = None if conv is None else plane_ends(kernel, conv)
    if conv is None or ends is None or not any(ends.values()):
        return None
    m = _FORMS[algorithm]
    direct = next((sketch for sketch in others if sketch.algorithm is Algorithm.DIRECT), None)
    if direct is None:
        return None
    sizes = kernel.inputs[call.inputs.index(SIZES)].name
    plane: list[Expr] = [integer(axis.extent) for axis in (conv.oh, conv.ow)]
    for position, axis in enumerate((conv.oh, conv.ow)):
        for size, offset in ends[axis.name]:
            match size:
                case Load(buffer=name, indices=(Const(value=place),)) if name == sizes:
                    plane[position] = _size(int(place), offset)
    images = _extent_at(kernel, sizes, 0)
    condition = _at_most((images, *plane), direct_below(conv, m, spaces.target))
    height, width = (max(1, int(_at(item, least))) for item in plane)
    taken = _bytes_of(program, call, (conv.weight.buffer,))
    grown = taken * (m + 2) ** 2 // 9 - taken
    gain = direct_gain(conv, m, spaces.target, (height, width))
    return _Few(condition, _schedule(direct, TILES), gain, taken, grown)


def _few_rows(
    program: KernelProgram,
    call: KernelCall,
    least: Sizes,
    target: Target,
    first: Sketch,
    others: Sequence[Sketch],
) -> _Few | None:
    """When split-integer dot products are faster than to unpack a product's weights."""
    kernel = call.kernel
    digits = next((sketch for sketch in others if sketch.algorithm is Algorithm.DIGITS), None)
    if digits is None or first.algorithm is not Algorithm.DIRECT:
        return None
    few = few_rows(kernel, digits, target)
    sizes = kernel.inputs[call.inputs.index(SIZES)].name
    rows = [_extent_at(kernel, sizes, at) for at in range(len(kernel.output.shape) - 1)]
    condition = _at_most(rows, few.most)
    stored = _packed(_schedule(first))
    tiles = next(choice.values for choice in digits.choices if choice.name == "tile")
    sharing = [tile for tile in tiles if _packed(_schedule(digits, (tile,))) == stored]
    schedule = _schedule(digits, sorted(sharing, key=_sums_of_tile, reverse=True))
    taken = 0 if sharing else _bytes_of(program, call, stored)
    there = math.prod(max(1, int(_at(item, least))) for item in rows)
    return _Few(condition, schedule, few.gain(there), taken, 0)


def _schedule(sketch: Sketch, tiles: Sequence[ChoiceValue] = ()) -> Schedule:
    """The default schedule, with the first of these tiles that the sketch has."""
    names = (choice.name for choice in sketch.choices)
    values = dict(zip(names, sketch.default, strict=True))
    for choice in sketch.choices:
        if choice.name == "tile":
            own = (tile for tile in tiles if tile in choice.values)
            values["tile"] = next(own, values["tile"])
    return sketch.build(values)


def _sums_of_tile(tile: ChoiceValue) -> int:
    assert isinstance(tile, tuple)
    return math.prod(map(int, tile))


def _packed(schedule: Schedule) -> dict[str, ConstantLayout]:
    """How constants are stored for a schedule, by their buffers."""
    steps = (step for step in schedule.steps if isinstance(step, PackLayout))
    return {step.buffer: step.layout for step in steps}


def _bytes_of(program: KernelProgram, call: KernelCall, buffers: Iterable[str]) -> int:
    """Of the constants that a call's kernel has by these names."""
    names = [buffer.name for buffer in call.kernel.inputs]
    return sum(program.types[call.inputs[names.index(name)]].bytes for name in buffers)


def _size(number: int, offset: int) -> Expr:
    """A size of the run, and what is added to it."""
    return add(Load(DType.I64, SIZES, (integer(number),)), integer(offset))


def _at_most(extents: Iterable[Expr], most: int) -> Expr:
    """There are at most so many pixels in the planes of all images, or rows of data."""
    found: Expr = integer(1)
    for extent in extents:
        found = mul(found, extent)
    return binary("lt", found, integer(most + 1))


def _at(expr: Expr, sizes: Sizes) -> Scalar:
    """What an expression is at these sizes."""
    return value_of(expr, {SIZES: np.array(sizes)}, {})


def _extent_at(kernel: FusedKernel, sizes: str, position: int) -> Expr:
    """The extent of the output's axis at this position."""
    shape = kernel.output.shape
    stride = math.prod(shape[position + 1 :])
    for limit in kernel.limits:
        if (limit.stride, limit.extent, limit.sizes) == (stride, shape[position], sizes):
            return _size(limit.number, limit.offset)
    return integer(shape[position])


def _asked(
    program: KernelProgram, conditions: list[Expr], types: dict[str, TensorType]
) -> list[Call]:
    """The calls that find out which conditions hold; their values get their types."""
    builder = KernelBuilder()
    sizes = builder.input(program.types[SIZES])

    def own(node: Expr) -> Expr | None:
        return replace(node, buffer=sizes.name) if isinstance(node, Load) else None

    def holds(i: Expr) -> Expr:
        cases = [
            binary("and", binary("eq", i, integer(number)), transform(few, own))
            for number, few in enumerate(conditions)
        ]
        found = cases[0]
        for case in cases[1:]:
            found = binary("or", found, case)
        return found

    builder.stage("few", [("i", len(conditions))], holds)
    kernel = FusedKernel("few", tuple(builder.inputs), tuple(builder.stages), "few")
    types[FEW] = TensorType(DType.BOOL, (len(conditions),))
    types |= {f"{FEW}.{number}": TensorType(DType.BOOL, ()) for number in range(len(conditions))}
    views = (ViewCall(FEW, f"{FEW}.{number}", number) for number in range(len(conditions)))
    return [KernelCall(kernel, workload_key(kernel), (SIZES,), FEW, (), ()), *views]
