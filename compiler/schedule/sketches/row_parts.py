"""The parts of a row-wise schedule: reductions in several accumulators, and constants of a row."""

from __future__ import annotations

from dataclasses import dataclass, field

from tunefarm.compiler.expr.parts import parts_without
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import Hoist, SplitReduction
from tunefarm.compiler.schedule.steps.packing import PackStage
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Partition, Reorder, Tile
from tunefarm.compiler.types.frozen import frozen


@dataclass(slots=True)
class RowParts:
    """Stages computed for one row of the output, and the steps that make and arrange them."""

    names: list[str] = field(default_factory=list)
    made: list[Step] = field(default_factory=list)
    loops: list[Step] = field(default_factory=list)


@frozen
class RowReduction:
    """A stage that reduces along `axis`; its other axes, and its other reduce axes.

    Where `rows` says so, (one of the latter, how many), so many rows are reduced side by side.
    """

    stage: str
    axis: str
    extent: int
    axes: tuple[str, ...]
    others: tuple[str, ...]
    rows: tuple[str, int] | None = None


def split_widths(lanes: int, accumulators: int) -> tuple[int, ...]:
    """Numbers of partial results, each combined into the next: registers, then ever less lanes."""
    widths = [accumulators * lanes] if accumulators > 1 else []
    while lanes > 1:
        widths.append(lanes)
        lanes //= 2
    return tuple(widths)


def split_reduction(
    parts: RowParts,
    reduction: RowReduction,
    lanes: int,
    widths: tuple[int, ...],
    masked: bool,
) -> None:
    """Reduce in widths[0] partial results, combine those in widths[1], and so on.

    for k.o: for k.l < 32: s.lanes[k.l] += x[k.o*32 + k.l]     (4 registers of 8)
    for o < 4: for l < 8: s.lanes_1[l] += s.lanes[o*8 + l]
    for o < 2: for l < 4: s.lanes_2[l] += s.lanes_1[o*4 + l] ...

    Rows side by side have a register each, however short they are:

    for r.o: for k.o: for r.l < 4: for k.l < 8:
        s.lanes.lanes[r.l, k.l] += x[r.o*4 + r.l, k.o*8 + k.l]
    for r.l < 4: for k.l < 8: s.lanes[k.l] += s.lanes.lanes[r.l, k.l]

    What whole steps leave over is a last, `masked` step, or reduced likewise on its own.
    """
    _split(parts, reduction, lanes, widths, combines=False, masked=masked)


def _split(
    parts: RowParts,
    reduction: RowReduction,
    lanes: int,
    widths: tuple[int, ...],
    combines: bool,
    masked: bool,
) -> None:
    name, axis, extent = reduction.stage, reduction.axis, reduction.extent
    reached = 2 * extent - 1 if masked and not combines else extent
    fitting = [width for width in widths if width <= reached and (width < extent or not combines)]
    if not fitting or extent == 1:
        parts.names.append(name)
        if combines:
            parts.loops.append(Unroll(name, axis))
        return
    width, rest = fitting[0], extent % fitting[0]
    parts.made.append(SplitReduction(name, axis, width, masked and rest > 0))
    partial, count = f"{name}.lanes", 0
    while partial in parts.names:
        count += 1
        partial = f"{name}.lanes_{count}"
    if reduction.rows is not None and not combines:
        walked = _side_by_side(parts, reduction, partial)
    else:
        walked = partial
        _partial_loops(parts, reduction, partial, min(lanes, width), combines)
    parts.names.append(partial)
    if rest and masked:
        parts.loops.append(Partition(walked, f"{axis}.o", 0, 0, (extent // width,)))
        rest = 0
    total = f"{name}.sum" if rest else name
    lane = RowReduction(total, f"{axis}.l", width, reduction.axes, ())
    below = tuple(w for w in widths if w < width)
    _split(parts, lane, lanes, below, combines=True, masked=False)
    if rest:
        tail = RowReduction(f"{name}.tail", f"{axis}.t", rest, reduction.axes, reduction.others)
        narrower = tuple(w for w in widths if w <= lanes)
        _split(parts, tail, lanes, narrower, combines=False, masked=False)
        parts.names.append(name)


def _side_by_side(parts: RowParts, reduction: RowReduction, partial: str) -> str:
    """Several rows at once in registers of their own, which are then combined in the partial result
    of one vector; the new stage."""
    assert reduction.rows is not None
    (axis, count), places = reduction.rows, len(reduction.axes)
    rows, row, lane = f"{partial}.lanes", f"{axis}.l", f"{reduction.axis}.l"
    others = tuple(other for other in reduction.others if other != axis)
    order = (*range(places), places + 1, places)
    parts.made += [SplitReduction(partial, axis, count), PackStage(rows, (), order)]
    parts.names.append(rows)
    around = (*reduction.axes, *others, f"{axis}.o", f"{reduction.axis}.o")
    for stage, outer in (rows, around), (partial, reduction.axes):
        parts.loops += [
            Reorder(stage, (*outer, row, lane)),
            Unroll(stage, row),
            Vectorize(stage, lane),
        ]
    return rows


def _partial_loops(
    parts: RowParts, reduction: RowReduction, partial: str, vector: int, combines: bool
) -> None:
    """Whole vectors along the lanes, one register for each."""
    outer, lane = f"{reduction.axis}.o", f"{reduction.axis}.l"
    registers, elements = f"{lane}.o", f"{lane}.i"
    parts.loops += [
        Tile(partial, lane, vector),
        Reorder(partial, (*reduction.axes, *reduction.others, outer, registers, elements)),
        Unroll(partial, registers),
        Vectorize(partial, elements),
    ]
    if combines:
        parts.loops.append(Unroll(partial, outer))


def row_constants(
    kernel: FusedKernel, inner: dict[str, str], rows: tuple[str, ...]
) -> tuple[list[str], list[Step]]:
    """What stages compute anew for each element, although it is the same for the whole row.

    `inner` gives by stage the axis that runs along the row. The new stages, and the steps.
    """
    names: list[str] = []
    steps: list[Step] = []
    for stage in kernel.stages:
        axis = inner.get(stage.name, "")
        if axis not in [item.name for item in (*stage.axes, *stage.reduce_axes)]:
            continue
        excluded = {axis, *(item.name for item in stage.reduce_axes)}
        for count, part in enumerate(parts_without(stage.body, excluded)):
            if not axes_of(part) <= set(rows):
                break  # not a constant of a row; the step takes parts in this order
            names.append(f"{stage.name}.constant{count or ''}")
            steps.append(Hoist(stage.name, axis, names[-1]))
    return names, steps
