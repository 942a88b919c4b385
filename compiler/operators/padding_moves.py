"""Padding rules of operators that move elements: slices, expansions, look-ups, updates."""

from __future__ import annotations

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.operators.padding import PaddedUse, padding_rule
from tunefarm.compiler.types.dims import (
    ONE,
    Axis,
    Dims,
    extent_of,
    is_unpadded,
    joined,
    size_of,
    whole,
)


@padding_rule("concat")
def _concat(use: PaddedUse) -> Dims:
    """The parts' axis is whole: see the importer's form for one that is not."""
    positions, axis = use.present(), use.attributes.integer("axis")
    total = 0
    for position in positions:
        use.require_whole(position, axis, "a part of a concatenation")
        total += extent_of(use.operand(position)[axis])
    rank = len(use.operand(0))
    return tuple(
        whole(total) if other == axis else use.same(*((p, other) for p in positions))
        for other in range(rank)
    )


@padding_rule("slice")
def _slice(use: PaddedUse) -> Dims:
    """Axes are kept as they are, or are whole."""
    starts, steps, shape = (use.attributes.integers(name) for name in ("starts", "steps", "shape"))
    result: list[Axis] = []
    for axis, (start, step, count) in enumerate(zip(starts, steps, shape, strict=True)):
        given = use.operand(0)[axis]
        if start == 0 and step == 1 and count == extent_of(given):
            result.append(given)
            continue
        least = _least_size(given)
        if least is None or max(start, start + (count - 1) * step) >= least:
            raise ShapeError(
                f"positions {start} to {start + (count - 1) * step} of an axis of {size_of(given)} "
                "need not be there"
            )
        result.append(whole(count))
    return tuple(result)


def _least_size(axis: Axis) -> int | None:
    """How many elements an axis has at least, from its first one on without gaps."""
    if len(axis) > 1:
        return None
    ((true, _),) = axis
    return true if isinstance(true, int) else true.bounds[0]


@padding_rule("expand")
def _expand(use: PaddedUse) -> Dims:
    """Padded axes stay; the importer says which of the new ones are padded."""
    shape, data = use.attributes.integers("shape"), use.operand(0)
    rank = max(len(shape), len(data))
    given = (ONE,) * (rank - len(data)) + data
    wanted = (1,) * (rank - len(shape)) + shape
    result = []
    for axis, extent in zip(given, wanted, strict=True):
        if not is_unpadded(axis) and extent not in (1, extent_of(axis)):
            raise ShapeError(f"an axis of {size_of(axis)} does not expand to {extent}")
        result.append(whole(extent) if is_unpadded(axis) and extent != 1 else axis)
    return tuple(result)


@padding_rule("tile")
def _tile(use: PaddedUse) -> Dims:
    """Axes with padding are not repeated, or are outermost in what is: [repeats, axis]."""
    repeats = use.attributes.integers("repeats")
    return tuple(
        joined(((count, count), *axis)) for count, axis in zip(repeats, use.operand(0), strict=True)
    )


@padding_rule("trilu")
def _trilu(use: PaddedUse) -> Dims:
    """Rows and columns are counted."""
    for axis in (-2, -1):
        use.require_in_one_piece(0, len(use.operand(0)) + axis, "a triangle")
    return use.operand(0)


@padding_rule("pad")
def _pad(use: PaddedUse) -> Dims:
    """Only whole axes get more elements here; see the importer's form for others."""
    data, pads = use.operand(0), use.attributes.integers("pads")
    result: list[Axis] = []
    for axis, given in enumerate(data):
        more = pads[axis] + pads[axis + len(data)]
        if pads[axis] or pads[axis + len(data)]:
            use.require_whole(0, axis, "an axis that is padded")
            given = whole(extent_of(given) + more)
        result.append(given)
    return tuple(result)


@padding_rule("gather")
def _gather(use: PaddedUse) -> Dims:
    """Positions in padding are clamped, by the operator itself, and what they give is padding."""
    data, picks = use.operand(0), use.operand(1)
    axis = use.attributes.integer("axis")
    return *data[:axis], *picks, *data[axis + 1 :]


@padding_rule("gather_elements")
def _gather_elements(use: PaddedUse) -> Dims:
    """There may be fewer indices along the other axes than elements, which a run checks."""
    axis = use.attributes.integer("axis")
    return tuple(
        picked if number == axis else use.within((1, number), (0, number))
        for number, picked in enumerate(use.operand(1))
    )


@padding_rule("gather_nd")
def _gather_nd(use: PaddedUse) -> Dims:
    data, picks = use.operand(0), use.operand(1)
    batch = use.attributes.integer("batch_dims")
    use.require_whole(1, len(picks) - 1, "an index tuple")
    shared = tuple(use.same((0, axis), (1, axis)) for axis in range(batch))
    depth = extent_of(picks[-1])
    for axis in range(batch, batch + depth):
        use.require_in_one_piece(0, axis, "positions")
    return *shared, *picks[batch:-1], *data[batch + depth :]


@padding_rule("one_hot")
def _one_hot(use: PaddedUse) -> Dims:
    picks, axis = use.operand(0), use.attributes.integer("axis")
    return *picks[:axis], whole(use.attributes.integer("depth")), *picks[axis:]


@padding_rule("scatter_elements")
def _scatter_elements(use: PaddedUse) -> Dims:
    """Updates in padding go nowhere: their positions are the lowest number."""
    before = use.same((0, 0), (1, 0), (2, 0))
    use.same((1, 1), (2, 1))
    use.fill(1, 1, "lowest")
    return before, use.operand(0)[1], use.same((0, 2), (1, 2), (2, 2))


@padding_rule("scatter_rows")
def _scatter_rows(use: PaddedUse) -> Dims:
    use.same((1, 0), (2, 0))
    use.fill(1, 0, "lowest")
    return use.operand(0)[0], use.same((0, 1), (2, 1))


@padding_rule("rotary")
def _rotary(use: PaddedUse) -> Dims:
    data = use.operand(0)
    use.require_whole(0, len(data) - 1, "the features that are turned")
    tables = use.broadcast(0, 1, 2, but=1)
    return *tables, data[-1]


@padding_rule("lookup")
def _lookup(use: PaddedUse) -> Dims:
    return use.operand(0)


@padding_rule("quantize", "dequantize")
def _quantized(use: PaddedUse) -> Dims:
    """Scales and zero points are constants of axes that are whole."""
    for position in use.present()[1:]:
        for axis in range(len(use.operand(position))):
            use.require_whole(position, axis, "an axis of scales")
    return use.operand(0)


@padding_rule("cache_update")
def _cache_update(use: PaddedUse) -> Dims:
    """What comes behind the update in the cache stays; sizes of the axis are operands."""
    cache, axis = use.operand(0), use.attributes.integer("axis")
    if 4 not in use.present():
        use.require_whole(1, axis, "the axis of an update")
    if use.attributes.flag("circular") and 3 not in use.present():
        use.require_whole(0, axis, "the axis of a cache that begins again")
    others = {
        other: use.same((0, other), (1, other)) for other in range(len(cache)) if other != axis
    }
    if 2 in use.present():
        use.same((0, 0), (2, 0))
    return tuple(others.get(other, cache[other]) for other in range(len(cache)))


@padding_rule("choose")
def _choose(use: PaddedUse) -> Dims:
    return use.broadcast(1, 2)


@padding_rule("tree_step")
def _tree_step(use: PaddedUse) -> Dims:
    """Of rows that are not there any node will do: the tables clamp what they are read at."""
    for position in use.present()[2:]:
        use.require_whole(position, 0, "a table of nodes")
    use.require_whole(1, 1, "the axis of features")
    if use.attributes.flag("by_rows"):
        return use.same((0, 0), (1, 0)), use.operand(0)[1]
    return use.operand(0)[0], use.same((0, 1), (1, 0))


@padding_rule("tree_leaves")
def _tree_leaves(use: PaddedUse) -> Dims:
    """As `tree_step`."""
    by_rows = use.attributes.flag("by_rows")
    use.require_whole(0, int(by_rows), "the axis of features")
    for position in use.present()[1:]:
        for axis in range(len(use.operand(position))):
            use.require_whole(position, axis, "a table of nodes")
    trees, rows = use.operand(1)[int(by_rows)], use.operand(0)[1 - int(by_rows)]
    return (rows, trees) if by_rows else (trees, rows)


@padding_rule("weight_product")
def _weight_product(use: PaddedUse) -> Dims:
    for position in use.present()[1:]:
        for axis in range(2):
            use.require_whole(position, axis, "an axis of the weights")
    data = use.operand(0)
    use.require_whole(0, len(data) - 1, "the axis that is summed")
    return *data[:-1], use.operand(1)[1]
