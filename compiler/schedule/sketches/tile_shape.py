"""The loops of the tiled reduction's candidates in closed form; see `tiled_reduction` for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from compiler.schedule.nest_shape import (
    NestBuilder,
    NestShape,
    Numbers,
    Operand,
    Positions,
    aliased_lines,
    operands_of,
)
from compiler.schedule.sketches.tile_domains import (
    COLUMNS,
    MAX_UNROLLED,
    ROWS,
    TileContext,
    row_cycles,
)
from compiler.schedule.space import Choice, ChoiceValue

COPY_CYCLES = 2.0  # a byte, to decide and copy padding element by element
WAYS = 8.0  # lines of equal address modulo a page that a first-level cache holds
Mask = npt.NDArray[np.bool_]


def tile_shape(
    context: TileContext,
    choices: Sequence[Choice],
    parallel: Callable[[str], Sequence[str]],
) -> Callable[[Positions], NestShape]:
    """A function from positions of `choices` to the shape of the loops.

    `parallel` tells which of "row", "block" and "column" (or of the axes outside of them) are
    shared by threads, by the value of the choice "loops".
    """
    domains = {choice.name: choice.values for choice in choices}
    roles, lanes = context.roles, context.lanes
    stages = [context.anchor]
    if context.kernel.output is not context.anchor:
        stages.append(context.kernel.output)
    axes = [axis.name for axis in (*context.anchor.axes, *context.anchor.reduce_axes)]
    extents = {name: context.extent(name) for name in axes}
    numbers = {name: number for number, name in enumerate(axes)}
    operands = operands_of(context.kernel, stages, numbers)
    points = math.prod(extents.values())
    tiles = _table(domains["tile"])
    steps = _table(domains["unroll"])
    copied = _copied_bytes(context)
    broadcasts = context.broadcasts
    columns_extent = extents[roles.column] if roles.column else 1

    def shape(positions: Positions) -> NestShape:
        count = len(positions["tile"])
        columns, vectors = tiles[positions["tile"]].T
        inner, second = steps[positions["unroll"]].T
        nest = NestBuilder(axes, count)
        if roles.block:
            nest.inside[numbers[roles.block]] = vectors
            nest.inside[numbers[roles.vector]] = lanes
        else:
            nest.inside[numbers[roles.vector]] = vectors * lanes
        if roles.column:
            nest.inside[numbers[roles.column]] = columns
        body = _reduction(context, nest, positions, domains, columns * vectors, inner, second)
        blocks = context.vectors / vectors
        whole_blocks = np.ceil(blocks)
        turns = {"block": blocks, "column": columns_extent / columns}
        _outer_loops(context, nest, positions, domains, turns, columns)
        whole, rest = np.divmod(columns_extent, columns)
        shifted = _is(positions, domains, "rest", "shift") & (rest > 0)
        masked = _is(positions, domains, "tail", "mask")
        reduction = math.prod(extents[axis] for axis in roles.reduce)
        others = points / (columns_extent * reduction * context.vectors * lanes)
        if roles.block:
            others = points / (columns_extent * reduction * extents[roles.block] * lanes)
        others = max(1.0, others) * reduction
        inline = _is(positions, domains, "padding", "inline")
        row = row_cycles(context, columns, vectors, shifted, inline)
        aliased = _aliased(context, operands, numbers, columns, vectors)
        row = row * np.maximum(1.0, aliased / WAYS) ** 2
        copies = np.where(inline, 0.0, copied)
        cycles = whole_blocks * others * row + copies * COPY_CYCLES
        done_columns = whole + np.where(rest > 0, np.where(shifted, 1.0, rest / columns), 0.0)
        executed = done_columns * columns / columns_extent * whole_blocks / blocks
        executed = np.where(masked, executed, np.maximum(1.0, executed))
        useful = extents[roles.vector] / (math.ceil(extents[roles.vector] / lanes) * lanes)
        pieces, grains = _parallel(context, positions, domains, parallel, blocks, columns)
        return NestShape(
            operands=operands,
            inside=nest.inside,
            order=nest.order,
            trips=nest.trips,
            body=body,
            accumulators=columns * vectors,
            registers=columns * vectors + vectors + 1,
            loads=columns + vectors if broadcasts else columns * vectors + vectors,
            step=columns * vectors,
            cycles=cycles,
            flops=2.0 * points * executed,
            full=whole * columns / columns_extent * np.floor(blocks) / blocks,
            lanes=np.full(count, useful),
            aliased=aliased,
            temporary=2.0 * copies,
            pieces=pieces,
            grains=grains,
        )

    return shape


def _table(values: Sequence[ChoiceValue]) -> Numbers:
    return np.array([[float(n) for n in v] for v in values if isinstance(v, tuple)], np.float64)


def _is(
    positions: Positions, domains: Mapping[str, Sequence[ChoiceValue]], name: str, value: str
) -> Mask:
    """Which candidates have this value of this choice; all False where it is not open."""
    if name not in domains:
        return np.zeros(len(positions["tile"]), np.bool_)
    table = np.array([item == value for item in domains[name]])
    return np.asarray(table[positions[name]], np.bool_)


def _copied_bytes(context: TileContext) -> float:
    """Bytes of the prologue's stages, which are written and read again unless they are inlined."""
    return float(
        sum(
            math.prod(axis.extent for axis in context.kernel.stage(name).axes)
            * context.kernel.stage(name).dtype.bytes
            for name in context.prologue
        )
    )


def _aliased(
    context: TileContext,
    operands: Sequence[Operand],
    numbers: Mapping[str, int],
    columns: Numbers,
    vectors: Numbers,
) -> Numbers:
    """Lines of the data read in a step that compete for one set of the first-level cache."""
    roles = context.roles
    constants = {buffer.name for buffer in context.kernel.inputs if buffer.constant}
    most = np.ones_like(columns)
    for operand in operands[:-1]:
        if operand.name in constants or not roles.column:
            continue
        lines = aliased_lines(operand.stride(numbers[roles.column]), columns)
        if roles.block:
            lines = lines * aliased_lines(operand.stride(numbers[roles.block]), vectors)
        most = np.maximum(most, lines)
    return most


def _reduction(
    context: TileContext,
    nest: NestBuilder,
    positions: Positions,
    domains: Mapping[str, Sequence[ChoiceValue]],
    tile: Numbers,
    inner: Numbers,
    second: Numbers,
) -> Numbers:
    """Add the loops of the reduction; the operations in the unrolled body."""
    orders = [tuple(str(axis) for axis in v) for v in domains["reduce"] if isinstance(v, tuple)]
    depth = len(orders[0])
    axis_at = np.array([[nest.numbers[axis] for axis in order] for order in orders])
    extent_at = np.array([[float(context.extent(axis)) for axis in order] for order in orders])
    chosen = positions["reduce"]
    count = len(chosen)
    rows = np.arange(count)
    last = extent_at[chosen, depth - 1]
    steps = np.minimum(inner, last)
    for _ in range(8):  # halved until the body is small enough, as the steps are made
        steps = np.where((steps > 1) & (steps * tile > MAX_UNROLLED), np.floor(steps / 2), steps)
    whole = steps == last
    steps = np.where(last < 2 * steps, last, steps)  # one turn and its rest: straight code
    nest.inside[axis_at[chosen, depth - 1], rows] = steps
    body = tile * steps
    if depth > 1:
        outer = extent_at[chosen, depth - 2]
        unrolls = (second > 1) & whole & (outer * steps * tile <= MAX_UNROLLED)
        grown = np.where(unrolls, outer, 1.0)
        nest.inside[axis_at[chosen, depth - 2], rows] = grown
        body = body * grown
    nest.loop(axis_at[chosen, depth - 1], last / steps)
    for level in range(depth - 2, -1, -1):
        extent = extent_at[chosen, level]
        trips = extent / nest.inside[axis_at[chosen, level], rows]
        nest.loop(axis_at[chosen, level], trips)
    return np.asarray(body, np.float64)


def _outer_loops(
    context: TileContext,
    nest: NestBuilder,
    positions: Positions,
    domains: Mapping[str, Sequence[ChoiceValue]],
    turns: Mapping[str, Numbers],
    columns: Numbers,
) -> None:
    """Add the loops over tiles, in the order of each candidate, and those outside of them."""
    roles = context.roles
    orders = [str(value).split() for value in domains["loops"]]
    depth = max(len(order) for order in orders)
    chosen = positions["loops"]
    count = len(chosen)
    axis_of = {
        "row": roles.row,
        "block": roles.block or roles.vector,
        "column": roles.column,
    }
    any_axis = nest.numbers[roles.vector]
    for level in range(depth):
        number = np.full(count, any_axis)
        trips = np.ones(count)
        for position, order in enumerate(orders):
            if level >= len(order):
                continue
            name = order[len(order) - 1 - level]
            kind = name.rstrip("0123456789")
            role = {ROWS: "row", COLUMNS: "column"}.get(kind, kind)
            axis = axis_of[role]
            if not axis:
                continue
            here = chosen == position
            block = int(order[0][len(kind) :]) if kind in (ROWS, COLUMNS) else 0
            first = order[0].rstrip("0123456789")
            number[here] = nest.numbers[axis]
            if block:
                trips[here] = context.extent(axis) / block
            elif role == "row":
                inside = int(order[0].removeprefix(ROWS)) if first == ROWS else 0
                trips[here] = float(inside or context.extent(axis))
            elif role == "column" and first == COLUMNS:
                trips[here] = int(order[0].removeprefix(COLUMNS)) / columns[here]
            else:
                trips[here] = turns[role][here]
        nest.loop(number, trips)
    for axis in reversed(roles.outer):
        nest.loop(axis, float(context.extent(axis)))


def _parallel(
    context: TileContext,
    positions: Positions,
    domains: Mapping[str, Sequence[ChoiceValue]],
    parallel: Callable[[str], Sequence[str]],
    blocks: Numbers,
    columns: Numbers,
) -> tuple[Numbers, Numbers]:
    """Iterations that are shared by the threads, and the chunks they are shared in."""
    count = len(positions["tile"])
    if context.threads == 1:
        return np.ones(count), np.ones(count)
    roles = context.roles
    extent = context.extent(roles.column) if roles.column else 1
    pieces = np.ones(count)
    for position, value in enumerate(domains["loops"]):
        here = positions["loops"] == position
        for name in parallel(str(value)):
            if name.startswith(ROWS):
                trips: Numbers | float = math.ceil(
                    context.extent(roles.row) / int(name.removeprefix(ROWS))
                )
            elif name.startswith(COLUMNS):
                trips = math.ceil(extent / int(name.removeprefix(COLUMNS)))
            elif name == "row":
                trips = float(context.extent(roles.row)) if roles.row else 1.0
            elif name == "block":
                trips = np.ceil(blocks[here])
            elif name == "column":
                trips = np.ceil(extent / columns[here])
            else:
                trips = float(context.extent(name))
            pieces[here] *= trips
    chunks = np.array([float(str(value)) for value in domains["chunks"]])[positions["chunks"]]
    return pieces, np.minimum(pieces, chunks * context.threads)
