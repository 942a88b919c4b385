"""Sketch: square blocks that are turned in registers, where data moves between two orders of axes.

for rest.. (parallel): for blocks of u, blocks of v, in an order that is open:
    lanes vectors along u, the axis in which the input is contiguous, are loaded
    lanes vectors along v, the axis in which the output is contiguous, are stored

Serves transposes and changes of layout, with what is computed from their elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.expr.affine import Affine, affine
from compiler.expr.nodes import Load, add, index, integer, mul
from compiler.expr.parts import parts_that_read
from compiler.expr.walk import axes_of, loads, substitute
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.stage import Stage
from compiler.schedule.schedule import Schedule
from compiler.schedule.sketches.merged_axes import merge_all
from compiler.schedule.sketches.row_shape import block_shape
from compiler.schedule.sketches.row_wise import (
    PARALLEL_ELEMENTS,
    parallel_steps,
    work,
)
from compiler.schedule.space import Choice, ChoiceValue, Sketch
from compiler.schedule.steps.cache_read import CacheRead
from compiler.schedule.steps.compute_at import ComputeAt
from compiler.schedule.steps.merge_axes import MergeAxes
from compiler.schedule.steps.reorder import Reorder
from compiler.schedule.steps.step import Step
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from compiler.schedule.steps.vectorize import Vectorize
from compiler.schedule.vectors import vector_lanes
from compiler.target import Target
from compiler.types.dtypes import DType

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128)  # vectors along each side of a block of blocks
LONGEST = 64  # vectors along a block that is long, by rule
CACHE_LINE = 64  # bytes
WASTE = 1.1  # at most so many elements are moved per element, as the last block is shifted


@dataclass(frozen=True, slots=True)
class _Turn:
    """The input that is contiguous along `read` while the output is along `written`."""

    buffer: str
    read: str
    written: str


def transposed_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel moves data between orders in which whole vectors fit."""
    merged, merges = merge_all(kernel)
    lanes = vector_lanes(merged, target)
    turn = _turn(merged, lanes)
    if turn is None:
        return []
    extents = {axis.name: axis.extent for axis in merged.output.axes}
    line = max(1, CACHE_LINE // (lanes * merged.output.dtype.bytes))
    blocks = {
        axis: tuple(b for b in BLOCKS if b * lanes <= extents[axis])
        for axis in (turn.read, turn.written)
    }
    choices = [
        Choice("read", blocks[turn.read]),
        Choice("written", blocks[turn.written]),
        Choice("order", ("read", "written")),
        Choice("inner", ("read", "written")),
    ]
    # A few long streams along the longer axis, each of whole cache lines of the other side.
    longer = turn.read if extents[turn.read] > extents[turn.written] else turn.written
    most = {axis: LONGEST if axis == longer else line for axis in (turn.read, turn.written)}
    default: list[ChoiceValue] = [
        _longest([b for b in blocks[axis] if b <= most[axis]], lanes, extents[axis])
        for axis in (turn.read, turn.written)
    ]
    default += ["read" if longer == turn.read else "written"] * 2
    if threads > 1 and work(merged) >= PARALLEL_ELEMENTS:
        choices.append(Choice("chunks", (1, 2, 4, 8)))
        default.append(2)

    def build(assignment: Mapping[str, ChoiceValue]) -> Schedule:
        return Schedule(tuple(_steps(merged, merges, turn, lanes, assignment)))

    shape = block_shape(merged, lanes, threads, choices, turn.read, turn.written)
    return [Sketch("transposed", tuple(choices), build, tuple(default), shape)]


def _longest(blocks: Sequence[int], lanes: int, extent: int) -> int:
    """The longest block whose last one, shifted, repeats little of the one before."""
    return max(
        b for b in blocks if b == 1 or -(-extent // (b * lanes)) * b * lanes <= WASTE * extent
    )


def _turn(kernel: FusedKernel, lanes: int) -> _Turn | None:
    output = kernel.output
    if len(kernel.stages) > 1 or output.reduce_axes or len(output.axes) < 2:
        return None
    written = output.axes[-1]
    if written.extent < lanes:
        return None
    for buffer in kernel.inputs:
        if buffer.dtype is DType.BOOL or len(set(parts_that_read(output.body, buffer.name))) != 1:
            continue
        reads = [load for load in loads(output.body) if load.buffer == buffer.name]
        for axis in output.axes[:-1]:
            pair = (axis.name, written.name)
            if axis.extent >= lanes and all(
                _is_turned(output, load, buffer.shape, pair, lanes) for load in reads
            ):
                return _Turn(buffer.name, *pair)
    return None


def _is_turned(
    output: Stage, load: Load, shape: tuple[int, ...], pair: tuple[str, str], lanes: int
) -> bool:
    """Within tiles of both axes the load is contiguous along the first and strided along the other.

    Tiles, because a blocked index such as c // 8, c % 8 is only affine inside of one.
    """
    ranges = {axis.name: (0, axis.extent - 1) for axis in output.axes}
    values = {}
    for name in pair:
        blocks = -(-(ranges[name][1] + 1) // lanes)
        ranges[f"{name}.o"], ranges[f"{name}.i"] = (0, blocks - 1), (0, lanes - 1)
        values[name] = add(mul(index(f"{name}.o"), integer(lanes)), index(f"{name}.i"))
    form, stride = Affine(0, ()), 1
    for extent, item in zip(reversed(shape), reversed(load.indices), strict=True):
        form = form.plus(affine(substitute(item, values), ranges), stride)
        stride *= extent
    inner = [f"{name}.i" for name in pair]
    if any(not isinstance(atom, str) and axes_of(atom) & set(inner) for atom, _ in form.terms):
        return False
    return form.coefficient(inner[0]) == 1 and form.coefficient(inner[1]) > 1


def _steps(
    kernel: FusedKernel,
    merges: tuple[MergeAxes, ...],
    turn: _Turn,
    lanes: int,
    choice: Mapping[str, ChoiceValue],
) -> list[Step]:
    output = kernel.output.name
    names = [axis.name for axis in kernel.output.axes]
    rest = [name for name in names if name not in (turn.read, turn.written)]
    rows = f"{output}.rows"
    steps: list[Step] = [
        *merges,
        CacheRead(output, turn.buffer, rows, (*rest, turn.written, turn.read)),
    ]
    for axis, blocks in ((turn.read, choice["read"]), (turn.written, choice["written"])):
        steps += [
            Tile(output, axis, int(str(blocks)) * lanes, "shift"),
            Tile(output, f"{axis}.i", lanes),
        ]
    order = (turn.read, turn.written) if choice["order"] == "read" else (turn.written, turn.read)
    loops = [*rest, *(f"{axis}.o" for axis in order)]
    block = [f"{turn.written}.i.o", f"{turn.read}.i.o"]
    if choice["inner"] == "written":
        block.reverse()
    inside = [f"{turn.read}.i.i", f"{turn.written}.i.i"]
    steps += [
        Reorder(output, (*loops, *block, *inside)),
        Unroll(output, inside[0]),
        Vectorize(output, inside[1]),
    ]
    if "chunks" in choice:
        steps += parallel_steps(output, rest or loops, int(str(choice["chunks"])))[0]
    return [
        *steps,
        ComputeAt(rows, output, block[-1]),
        Unroll(rows, turn.written),
        Vectorize(rows, turn.read),
    ]
