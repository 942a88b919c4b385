"""Chains: kernels of several contractions or pools, each of which reads what the last one gave.

conv[n, c, h, w] = sum(in0 * in1); clip = min(conv, 6)            a part
pad = clip inside, else 0; conv_1 = sum(pad * in2); relu = ...    the next one
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunefarm.compiler.expr.affine import affine, affine_range
from tunefarm.compiler.expr.nodes import Binary, Load, index
from tunefarm.compiler.expr.parts import split_guards
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.dtypes import DType


def chain_parts(kernel: FusedKernel) -> tuple[FusedKernel, ...]:
    """The parts of a chain in order, each as a kernel whose input is what the part before gives.

    A part has padding, one reduction and its epilogue, under the names that they have in `kernel`.
    None where the kernel is no chain: its reductions are not those of convolutions, products with
    constants or pools, or something else reads what one of them gives.
    """
    reductions = [stage for stage in kernel.stages if stage.reduce_axes]
    if len(reductions) < 2 or not all(_is_link(kernel, stage) for stage in reductions):
        return ()
    if any(stage.dtype is not DType.F32 for stage in kernel.stages) or kernel.limits:
        return ()
    parts: list[FusedKernel] = []
    rest = list(kernel.stages)
    results: list[Stage] = []
    while rest:
        anchor = next((stage for stage in rest if stage.reduce_axes), None)
        if anchor is None:
            return ()
        count = rest.index(anchor) + 1
        count += count < len(rest) and _is_epilogue(rest[count], anchor)
        own, rest = rest[:count], rest[count:]
        part = _part(kernel, anchor, own, results[-1:])
        if part is None:
            return ()
        parts.append(part)
        results.append(own[-1])
    return tuple(parts)


def _is_link(kernel: FusedKernel, stage: Stage) -> bool:
    """A sum of products with a constant, or of elements as they are."""
    constants = {buffer.name for buffer in kernel.inputs if buffer.constant}
    _, body = split_guards(stage.body, stage.combiner)  # of channels that pad the last block
    if len(stage.axes) < 2 or stage.accumulator is not None:
        return False
    match body:
        case Binary(op="mul", left=Load(), right=Load(buffer=weight)):
            return weight in constants
    return isinstance(stage.body, Load)


def _is_epilogue(stage: Stage, anchor: Stage) -> bool:
    """The stage reads the anchor, and of it the element that it computes."""
    if stage.reduce_axes or [a.name for a in stage.axes] != [a.name for a in anchor.axes]:
        return False
    own = tuple(index(axis.name) for axis in anchor.axes)
    read = [load for load in loads(stage.body) if load.buffer == anchor.name]
    return bool(read) and all(load.indices == own for load in read)


def _part(
    kernel: FusedKernel, anchor: Stage, stages: Sequence[Stage], before: Sequence[Stage]
) -> FusedKernel | None:
    """The part that these stages make; None where it reads anything but the result before it."""
    names = {stage.name for stage in stages}
    read = {load.buffer for stage in stages for load in loads(stage.body)} - names
    sources = {stage.name for stage in before}
    epilogue = stages[-1] if stages[-1] is not anchor else None
    known = {buffer.name for buffer in kernel.inputs}
    if not sources <= read <= known | sources:
        return None
    if epilogue and any(load.buffer in sources for load in loads(epilogue.body)):
        return None
    inputs = [buffer for buffer in kernel.inputs if buffer.name in read]
    inputs += [Buffer(stage.name, stage.dtype, stage.shape) for stage in before]
    return FusedKernel(kernel.name, tuple(inputs), tuple(stages), anchor.name)


def rows_read(part: FusedKernel, axis: str, rows: int) -> int:
    """How many rows of its data a part reads for so many of its own, along one of its axes.

    At most as many as there are.
    """
    ranges = _ranges(part) | {axis: (0, rows - 1)}
    most = 0
    for load in _data_loads(part):
        extents = _data_shape(part, load)
        for item, extent in zip(load.indices, extents, strict=True):
            if axis in axes_of(item):
                low, high = affine_range(affine(item, ranges), ranges)
                most = max(most, min(high - low + 1, extent))
    return most


def lanes_read(part: FusedKernel) -> int:
    """How many elements along the last axis of its data a part reads."""
    ranges = _ranges(part)
    reached = (affine_range(affine(load.indices[-1], ranges), ranges) for load in _data_loads(part))
    return max(high - low + 1 for low, high in reached)


def _ranges(part: FusedKernel) -> dict[str, tuple[int, int]]:
    anchor = part.stage(part.anchor)
    return {axis.name: (0, axis.extent - 1) for axis in (*anchor.axes, *anchor.reduce_axes)}


def _data_loads(part: FusedKernel) -> list[Load]:
    """Those of what a part multiplies with constants, or pools."""
    constants = {buffer.name for buffer in part.inputs if buffer.constant}
    body = part.stage(part.anchor).body
    return [load for load in loads(body) if load.buffer not in constants]


def _data_shape(part: FusedKernel, load: Load) -> tuple[int, ...]:
    """The shape of what is read, without padding."""
    before = next((stage for stage in part.stages if stage.name == load.buffer), None)
    if before is None:
        return part.buffer(load.buffer).shape
    inner = next(item for item in loads(before.body) if len(item.indices) == len(load.indices))
    return _data_shape(part, inner)


def follows(part: FusedKernel, axis: str) -> bool:
    """Whether each point of this axis reads the same one of the data: of a batch, or of channels
    that are filtered."""
    return all(index(axis) in load.indices for load in _data_loads(part))


def part_work(part: FusedKernel) -> int:
    """Multiply-adds, or what a pool does instead, of a part."""
    anchor = part.stage(part.anchor)
    return math.prod(axis.extent for axis in (*anchor.axes, *anchor.reduce_axes))
