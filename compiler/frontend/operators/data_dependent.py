"""Converters of operators whose results are as large as their data says."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod

import numpy as np

from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.data_sizes import (
    all_there,
    compacted,
    counted_size,
    flags_of,
    placed,
    positions,
    with_axis,
)
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole, in_one_piece, window
from tunefarm.compiler.frontend.operators.moves import compacted as in_order
from tunefarm.compiler.frontend.settle import expect_constant
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import ONE, is_unpadded, size_of, whole
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of, smaller
from tunefarm.compiler.types.tensor_type import Attribute

# The first elements of rows in their order: of long rows those are found that are among them.
#
# To look at all pairs of a row takes time that grows with the square of its length, so long rows
# are sorted, digit by digit. Where few elements are wanted the key of the last of them is found bit
# by bit, each time by counting what is not below a guess. Of very long rows those blocks are
# searched whose greatest elements are among the first.
# Rows and elements that need not be there stay axes with sizes: what is not there is not computed.


_FEW = 16
"""Results that are found faster by comparing all places with each than by a scatter."""
_PAIR, _ELEMENT, _SEARCH = 0.25, 4.0, 5_000.0
"""Nanoseconds, measured: of a pair (0.1 with AVX-512, 0.4 with AVX2), of an element that is
searched, of the steps of a search."""
_MOVE, _PASS = 4.0, 1_500.0
"""Nanoseconds, measured: of an element in a pass of a sort, of such a pass."""


def best_of_rows(graph: GraphBuilder, rows: Value, most: int, *, largest: bool) -> Value:
    """Positions [rows, most] of the largest or smallest elements in order, of equal ones the first.

    `rows` is [rows, elements], of which some may not be there. Positions behind the last element
    that is there are any of the row. NaN is greater than all numbers.
    """
    if not _search_is_faster(rows, most):
        return _ordered(graph, rows, most, largest)
    taken = _first(graph, _keys(graph, rows, largest), most)
    axis = rows.dims[1]
    if not is_unpadded(axis):
        size = smaller(most, size_of(axis))
        taken = with_axis(taken, 1, size, graph)
    values = graph.emit("gather_elements", rows, taken, axis=1)
    order = _ordered(graph, values, most, largest)
    return graph.emit("gather_elements", taken, order, axis=1)


def _search_is_faster(rows: Value, most: int) -> bool:
    """Whether a search, and the order of what it finds, take less time than that of all."""
    count, extent = rows.shape
    searched = _SEARCH + count * extent * _ELEMENT + _ordering_time(rows, most)
    return extent >= 2 * most and searched < _ordering_time(rows, extent)


def _ordering_time(rows: Value, extent: int) -> float:
    """Nanoseconds that it takes to put so many elements of each row in order."""
    return min(_pairing_time(rows, extent), _sorting_time(rows, extent))


def _pairing_time(rows: Value, extent: int) -> float:
    return rows.shape[0] * extent**2 * _PAIR


def _sorting_time(rows: Value, extent: int) -> float:
    passes = _key_type(rows).bits // _digit(extent)
    return passes * (_PASS + rows.shape[0] * extent * _MOVE)


def _key_type(rows: Value) -> DType:
    """The integers that elements are compared by."""
    wide = (DType.F64, DType.I64, DType.U64, DType.U32)
    return DType.I64 if rows.dtype in wide else DType.I32


def _keys(graph: GraphBuilder, rows: Value, largest: bool) -> Value:
    """Integers that are the greater the earlier elements come; the minimum for what is absent."""
    integer = _key_type(rows)
    real = DType.F64 if integer is DType.I64 else DType.F32
    limits = np.iinfo(integer.numpy)
    if rows.dtype is DType.U64:
        bits = graph.emit("bit_cast", rows, to=str(integer))
        keys = graph.emit("bitwise_xor", bits, graph.scalar(limits.min, integer))
    elif not rows.dtype.is_float:
        keys = graph.cast(rows, integer)
    else:
        exact = graph.cast(rows, real)
        zero = graph.scalar(0, real)  # both zeros are equal
        exact = graph.emit("where", graph.emit("equal", exact, zero), zero, exact)
        bits = graph.emit("bit_cast", exact, to=str(integer))
        flipped = graph.emit("bitwise_xor", bits, graph.scalar(limits.max, integer))
        negative = graph.emit("less", bits, graph.scalar(0, integer))
        keys = graph.emit("where", negative, flipped, bits)
        unordered = graph.emit("isnan", exact)
        keys = graph.emit("where", unordered, graph.scalar(limits.max, integer), keys)
    if not largest:
        keys = graph.emit("bitwise_not", keys)
    return graph.padded.filled(keys, 1, "lowest")


def _first(graph: GraphBuilder, keys: Value, most: int) -> Value:
    """Positions [rows, most] of the greatest keys of each row, of equal ones the first, in order.

    Before a key that is taken come fewer than `most` others, so fewer than so many blocks have
    one: that key is in one of the `most` blocks that come first by their greatest keys.
    """
    rows, extent = keys.shape
    block = 1 << round(log2(extent / most) / 2)  # searches the fewest keys
    blocks = -(-extent // block)
    if not is_unpadded(keys.dims[1]) or 2 * (blocks + most * block) > extent:
        return _positions(graph, _taken(graph, keys, most), most)
    if behind := blocks * block - extent:
        least = np.iinfo(keys.dtype.numpy).min
        absent = graph.constant(np.full((rows, behind), least, keys.dtype.numpy))
        keys = graph.concat([keys, graph.with_dims(absent, (keys.dims[0], whole(behind)))], 1)
    parts = graph.reshape(keys, (rows, blocks, block))
    best = _first(graph, graph.emit("reduce_max", parts, axes=(2,), keepdims=False), most)
    begins = graph.emit("mul", best, graph.scalar(block, DType.I64))
    offsets = graph.constant(np.arange(block, dtype=np.int64))
    places = graph.emit("add", graph.reshape(begins, (rows, most, 1)), offsets)
    places = graph.reshape(places, (rows, most * block))
    within = _first(graph, graph.emit("gather_elements", keys, places, axis=1), most)
    return graph.emit("gather_elements", places, within, axis=1)


def _taken(graph: GraphBuilder, keys: Value, most: int) -> Value:
    """Which elements are the first of their rows: `most` of each."""
    dtype, count = keys.dtype, graph.scalar(most, DType.I32)

    def count_true(what: Value) -> Value:
        ones = graph.cast(what, DType.I32)
        return graph.emit("reduce_sum", ones, axes=(1,), keepdims=True)

    least = np.iinfo(dtype.numpy).min
    dims = (keys.dims[0], ONE)
    lowest = graph.constant(np.full((keys.shape[0], 1), least, dtype.numpy))
    bits = [least, *(1 << bit for bit in reversed(range(dtype.bits - 1)))]
    loop, most_steps = graph.fresh_number(), graph.scalar(len(bits), DType.I64)
    known = graph.append("loop_state", (lowest,), {"loop": loop, "number": 0})
    known = graph.with_dims(known, dims)
    number = graph.emit("loop_index", most_steps, loop=loop)
    step = graph.emit("gather", graph.constant(np.array(bits, dtype.numpy)), number, axis=0)
    guess = graph.emit("add", known, step)
    enough = graph.emit(
        "greater_equal", count_true(graph.emit("greater_equal", keys, guess)), count
    )
    following = graph.readable(graph.emit("where", enough, guess, known))
    bounds: dict[str, Attribute] = {
        "loop": loop,
        "states": 1,
        "most": len(bits),
        "number": 0,
        "backward": (),
    }
    last = graph.append("loop_result", (None, None, None, lowest, following), bounds)
    last = graph.with_dims(last, dims)
    above, equal = graph.emit("greater", keys, last), graph.emit("equal", keys, last)
    left = graph.emit("sub", count, count_true(above))
    before = graph.emit("cumsum", graph.cast(equal, DType.I32), axis=1, exclusive=True)
    first = graph.emit("and", equal, graph.emit("less", before, left))
    return graph.emit("or", above, first)


def _positions(graph: GraphBuilder, flags: Value, most: int) -> Value:
    """Where the flags of each row are set, `most` of each, in order."""
    rows, extent = flags.shape
    graph.check_array((rows, extent), 8)
    places = graph.emit("cumsum", graph.cast(flags, DType.I32), axis=1, exclusive=True)
    nowhere = graph.scalar(np.iinfo(np.int32).min, DType.I32)
    return _placed(graph, graph.emit("where", flags, places, nowhere), most)


def _ordered(graph: GraphBuilder, rows: Value, most: int, largest: bool) -> Value:
    """As `best_of_rows`, by the order of all elements of a row."""
    extent = rows.shape[1]
    if _sorting_time(rows, extent) < _pairing_time(rows, extent):
        return graph.part(_sorted(graph, _keys(graph, rows, largest)), 1, 0, most)
    axis = rows.dims[1]
    end = None if is_unpadded(axis) else graph.reshape(graph.size(size_of(axis)), (1,))
    ranks = graph.emit("rank_descending" if largest else "rank_ascending", rows, None, end)
    return _placed(graph, ranks, most)


def _digit(extent: int) -> int:
    """Bits that a pass of a sort looks at: the counts of all digits are fields of one integer."""
    return 2 if extent < 1 << 16 else 1


def _sorted(graph: GraphBuilder, keys: Value) -> Value:
    """Positions [rows, elements], the greatest keys first, of equal ones the first: a radix sort.

    Each pass puts the elements in the order of one digit of their keys, the last digit first. How
    many elements before it have the same digit, and how many of the row a smaller one, are sums of
    fields of an integer, one for each digit.
    """
    (rows, extent), digit = keys.shape, _digit(keys.shape[1])
    bits, field = keys.dtype.bits, 64 >> digit
    flipped = graph.emit(
        "bitwise_xor", keys, graph.scalar(np.iinfo(keys.dtype.numpy).max, keys.dtype)
    )
    ascending = graph.emit("bit_cast", flipped, to=f"u{bits}")
    shifts = np.arange(0, bits, digit, dtype=f"u{bits // 8}")
    loop, passes = graph.fresh_number(), graph.scalar(len(shifts), DType.I64)
    first = graph.constant(np.tile(np.arange(extent, dtype=np.int64), (rows, 1)))
    first = graph.with_dims(first, keys.dims)
    order = graph.append("loop_state", (first,), {"loop": loop, "number": 0})
    order = graph.with_dims(order, keys.dims)
    number = graph.emit("loop_index", passes, loop=loop)
    shift = graph.emit("gather", graph.constant(shifts), number, axis=0)
    low = graph.emit("gather_elements", ascending, order, axis=1)
    low = graph.emit("bit_shift", low, shift, direction="right")
    low = graph.emit("bitwise_and", low, graph.scalar((1 << digit) - 1, low.dtype))
    place = graph.emit("mul", graph.cast(low, DType.U64), graph.scalar(field, DType.U64))
    one = graph.emit("bit_shift", graph.scalar(1, DType.U64), place, direction="left")
    ones = graph.emit("bit_cast", one, to="i64")
    before = graph.emit("cumsum", ones, axis=1, exclusive=True)
    total = graph.emit("reduce_sum", ones, axes=(1,), keepdims=True)
    # A product with ones in all fields but the first is in each the sum of those below it.
    below = sum(1 << field * number for number in range(1, 1 << digit))
    below -= (below >> 63) << 64
    smaller_digits = graph.emit("mul", total, graph.scalar(below, DType.I64))
    counts = graph.emit("bit_cast", graph.emit("add", before, smaller_digits), to="u64")
    counts = graph.emit("bit_shift", counts, place, direction="right")
    counts = graph.emit("bitwise_and", counts, graph.scalar((1 << field) - 1, DType.U64))
    following = _scattered_into(graph, first, graph.cast(counts, DType.I64), order)
    bounds: dict[str, Attribute] = {
        "loop": loop,
        "states": 1,
        "most": len(shifts),
        "number": 0,
        "backward": (),
    }
    values = (None, None, None, first, graph.readable(following))
    return graph.with_dims(graph.append("loop_result", values, bounds), keys.dims)


def _placed(graph: GraphBuilder, places: Value, count: int) -> Value:
    """[rows, count]: which element of its row has each of the first places; 0 where none has it."""
    rows, extent = places.shape
    if count <= _FEW:
        wanted = graph.constant(np.arange(count, dtype=np.int32).reshape(1, count, 1))
        numbers = graph.constant(np.arange(extent, dtype=np.int32).reshape(1, 1, extent))
        numbers = graph.with_dims(numbers, (ONE, ONE, places.dims[1]))
        given = graph.reshape(graph.cast(places, DType.I32), (rows, 1, extent))
        here = graph.emit("equal", given, wanted)
        found = graph.emit("where", here, numbers, graph.scalar(0, DType.I32))
        total = graph.emit("reduce_sum", found, axes=(2,), keepdims=False)
        return graph.cast(total, DType.I64)
    return _scattered(graph, places, count)


def _scattered(graph: GraphBuilder, places: Value, count: int) -> Value:
    """[rows, count]: which element of its row has each place; 0 where none has it."""
    rows, extent = places.shape
    graph.check_array((rows, extent), 8)
    numbers = np.broadcast_to(np.arange(extent, dtype=np.int64), (rows, extent))
    zeros = graph.constant(np.zeros((rows, count), np.int64))
    zeros = graph.with_dims(zeros, (places.dims[0], whole(count)))
    updates = graph.constant(np.ascontiguousarray(numbers))
    return _scattered_into(graph, zeros, places, graph.with_dims(updates, places.dims))


def _scattered_into(graph: GraphBuilder, data: Value, places: Value, updates: Value) -> Value:
    """`data` with the updates of each row at their places in it."""
    columns = (graph.reshape(value, (*value.shape, 1)) for value in (data, places, updates))
    return graph.reshape(graph.emit("scatter_elements", *columns), data.shape)


# Converter of NonMaxSuppression: the best box that is left, again and again, for all classes.
#
# Each step takes the highest score of every class of every image at once and strikes out the boxes
# that overlap with it, in vectors; the loop ends behind the last box that any class has left.


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Lower and upper ends of boxes along both axes, and their areas: [images, 1, boxes] each."""

    low: tuple[Numbers, Numbers]
    high: tuple[Numbers, Numbers]
    area: Numbers


@converter("NonMaxSuppression", 10, 11)
def non_max_suppression(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Rows of (image, class, box), images and classes in order, and boxes by their scores."""
    boxes, scores = node.input(0), node.input(1)
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape[::2] != (scores.shape[0], 4):
        raise node.bad_shape(f"boxes {boxes.type} and scores {scores.type} do not fit")
    if boxes.shape[1] != scores.shape[2]:
        raise node.bad_shape(f"boxes {boxes.type} and scores {scores.type} do not fit")
    boxes, scores = _of_size(node, boxes, scores, graph)
    images, classes, count = scores.shape
    steps, limit = _steps(node, graph, count)
    if steps == 0:
        return graph.constant(np.zeros((0, 3), np.int64))
    taken, flags = _selected(node, graph, _corners(node, graph, boxes), scores, steps, limit)
    total = images * classes * steps
    graph.check_array((total, 3), 8)
    order, number = compacted(graph.reshape(flags, (total,)), graph)
    image, category = np.divmod(np.arange(images * classes, dtype=np.int64), classes)
    columns = [
        graph.constant(np.repeat(image, steps)),
        graph.constant(np.repeat(category, steps)),
        graph.reshape(taken, (total,)),
    ]
    rows = graph.concat([graph.reshape(column, (total, 1)) for column in columns], 1)
    size = counted_size(node, graph, number, total)
    return with_axis(graph.emit("gather", rows, order, axis=0), 0, size, graph)


def _of_size(
    node: OnnxNode, boxes: Value, scores: Value, graph: GraphBuilder
) -> tuple[Value, Value]:
    """Boxes and scores as they are padded: the lowest score is no box."""
    for own, other in ((0, 0), (1, 2)):
        sizes = size_of(boxes.dims[own]), size_of(scores.dims[other])
        graph.run_time.require_equal(*sizes, f"node {graph.source!r}")
    boxes, scores = in_order(boxes, graph), in_order(scores, graph)
    for axis in range(scores.rank):
        scores = graph.padded.filled(scores, axis, "lowest")
    return all_there(boxes, graph), all_there(scores, graph)


def _steps(node: OnnxNode, graph: GraphBuilder, count: int) -> tuple[int, Value | None]:
    """The most boxes of a class, and how many are asked for where that is computed."""
    most = node.optional(2)
    if most is None:
        return 0, None
    computed = None
    if most.array is None:
        computed = graph.cast(_number(graph, most), DType.I64)
    else:
        count = max(0, min(count, node.constant_integer(2, "the most boxes of a class")))
    return count, computed


def _corners(node: OnnxNode, graph: GraphBuilder, boxes: Value) -> _Boxes:
    images, count, _ = boxes.shape
    first, second, third, fourth = (
        Numbers(graph.pick(boxes, 2, number), graph).reshape(images, 1, count)
        for number in range(4)
    )
    ends = [(first, third), (second, fourth)]
    if node.integer("center_point_box", 0):
        ends = [(middle - (reach := size * 0.5), middle + reach) for middle, size in ends]
    above, left = (begin.at_most(end) for begin, end in ends)
    below, right = (begin.at_least(end) for begin, end in ends)
    return _Boxes((above, left), (below, right), (below - above) * (right - left))


def _selected(
    node: OnnxNode,
    graph: GraphBuilder,
    boxes: _Boxes,
    scores: Value,
    steps: int,
    limit: Value | None,
) -> tuple[Value, Value]:
    """The box of each step and whether there is one: [images, classes, steps] each."""
    struck = graph.scalar(-np.inf, scores.dtype)
    threshold = _threshold(node, graph, 3)
    if node.optional(4) is not None:
        enough = graph.emit("greater", scores, _threshold(node, graph, 4))
        scores = graph.emit("where", enough, scores, struck)
    loop = graph.fresh_number()
    left = graph.emit("loop_state", scores, loop=loop, number=0)
    best = graph.emit("arg_max", left, axis=2, keepdims=True)
    top = graph.emit("reduce_max", left, axes=(2,), keepdims=True)
    flag = graph.emit("greater", top, struck)
    going = graph.emit("reduce_max", flag, axes=(0, 1, 2), keepdims=False)
    overlaps = graph.emit("greater", _overlap(graph, boxes, best, scores.shape), threshold)
    gone = graph.emit("or", overlaps, graph.emit("equal", positions(scores.shape[2], graph), best))
    following = graph.emit("where", gone, struck, left)

    def result(number: int) -> Value:
        values = (limit, None, going, scores, following, best, flag)
        bounds = {"loop": loop, "states": 1, "most": steps, "number": number}
        return graph.emit("loop_result", *values, **bounds)

    taken, flags = (_of_classes(graph, result(number)) for number in (1, 2))
    ran = graph.emit("less", positions(steps, graph), result(3))  # the other rows hold anything
    return taken, graph.emit("and", flags, ran)


def _of_classes(graph: GraphBuilder, rows: Value) -> Value:
    """What the steps gave, [steps, images, classes, 1], as [images, classes, steps]."""
    steps, images, classes, _ = rows.shape
    return graph.reshape(graph.transpose(rows, (1, 2, 0, 3)), (images, classes, steps))


def _threshold(node: OnnxNode, graph: GraphBuilder, position: int) -> Value:
    value = node.optional(position)
    return graph.scalar(0, DType.F32) if value is None else _number(graph, value)


def _number(graph: GraphBuilder, value: Value) -> Value:
    """The only element of an operand; the first one where there are several."""
    if value.rank == 1 and value.shape != (1,):
        value = graph.part(value, 0, 0, 1)
    return graph.reshape(value, ())


def _overlap(graph: GraphBuilder, boxes: _Boxes, best: Value, shape: tuple[int, ...]) -> Value:
    """The share of the united area that each box has in common with the best one of its class."""

    def of_best(values: Numbers) -> Numbers:
        every = graph.emit("expand", values.value, shape=shape)
        return Numbers(graph.emit("gather_elements", every, best, axis=2), graph)

    rows, columns = (
        (high.at_most(of_best(high)) - low.at_least(of_best(low))).at_least(0)
        for low, high in zip(boxes.low, boxes.high, strict=True)
    )
    shared = rows * columns
    united = boxes.area + of_best(boxes.area) - shared
    return (shared > 0).choose(shared / united, 0).value


@converter("NonZero", 9, 13)
def nonzero(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Positions in row-major order, one row per axis."""
    data = graph.padded.dense(node.input(0))
    zero = graph.scalar(0, data.dtype)
    is_zero = graph.emit("equal", data, zero)
    flags = graph.emit("not", is_zero)
    for axis in range(data.rank):
        flags = graph.padded.filled(flags, axis, "zero")
    extent = data.type.size
    found, count = compacted(graph.reshape(all_there(flags, graph), (extent,)), graph)
    rows: list[Value] = []
    inner = extent
    for length in data.shape:
        inner //= length
        row = graph.emit("div", found, graph.scalar(inner, DType.I64)) if inner > 1 else found
        if rows:
            row = graph.emit("mod", row, graph.scalar(length, DType.I64))
        rows.append(graph.reshape(row, (1, extent)))
    if not rows:
        raise node.unsupported("a scalar")
    size = counted_size(node, graph, count, extent)
    return with_axis(graph.concat(rows, 0), 1, size, graph)


def compress_computed(node: OnnxNode, graph: GraphBuilder, data: Value, axis: int) -> Value:
    """Compress by a condition that is computed: as many elements as it has true ones."""
    condition = node.input(1)
    if condition.rank != 1:
        raise node.bad_shape("the condition must be a vector")
    if bounds_of(condition.true_shape[0])[0] > data.shape[axis]:
        raise node.bad_shape(f"the condition is longer than axis {axis} of {data.type}")
    data, condition = in_one_piece(data, axis, graph), in_one_piece(condition, 0, graph)
    flags = all_there(graph.padded.filled(condition, 0, "zero"), graph)
    _require_short(node, graph, data, axis, condition, flags)
    found, count = compacted(flags, graph)
    picked = graph.emit("gather", as_whole(data, axis, graph), found, axis=axis)
    size = counted_size(node, graph, count, flags.shape[0])
    return with_axis(picked, axis, size, graph)


def _require_short(
    node: OnnxNode, graph: GraphBuilder, data: Value, axis: int, condition: Value, flags: Value
) -> None:
    """Have runs refuse a condition that is true where the data has ended."""
    there, length = data.true_shape[axis], condition.true_shape[0]
    if bounds_of(there - length)[0] >= 0:
        return
    behind = graph.emit("greater_equal", positions(flags.shape[0], graph), graph.size(there))
    wrong = graph.emit("and", flags, behind)
    reason = f"{node.label} takes an element behind axis {axis}, which has {there} elements"
    graph.require(wrong, graph.origin(node.input(1)), reason)


_LARGER = "give the inputs larger sizes, and a range of sizes a larger minimum, with --shape"


@converter("TopK", 1, 10, 11, 24)
def top_k(node: OnnxNode, graph: GraphBuilder) -> list[Value]:
    """Each element's rank in its row says where it goes; equal ones stay in order."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", -1), data.rank)
    data = in_one_piece(data, axis, graph)
    extent = data.shape[axis]
    size = _number_of_results(node, graph, data, axis)
    most = bounds_of(size)[1]
    if most == 0:
        values = window(data, axis, 0, 0, graph)
        places = graph.constant(np.empty(values.shape, np.int64))
        return [values, graph.with_dims(places, values.padded)]
    order = [*(other for other in range(data.rank) if other != axis), axis]
    back = tuple(order.index(other) for other in range(data.rank))
    turned = graph.transpose(data, tuple(order))
    outer, dims = turned.shape[:-1], turned.dims
    rows = graph.reshape(turned, (prod(outer), extent))
    places = best_of_rows(graph, rows, most, largest=bool(node.integer("largest", 1)))
    values = graph.emit("gather_elements", rows, places, axis=1)
    axis_dims = ((size, most),) if isinstance(size, Size) else whole(most)
    return [
        graph.transpose(
            graph.with_dims(graph.reshape(value, (*outer, most)), (*dims[:-1], axis_dims)), back
        )
        for value in (values, places)
    ]


@dynamic_operand("TopK", at=(1,))
def computed_top_k(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """Where no shape is declared there may be as many results as elements, see the converter."""
    axis = node.axis(node.integer("axis", -1), node.input(0).rank)
    shape = node.declared_shape(0) or node.declared_shape(1)
    if shape is None:
        return node
    return node.with_constants({1: expect_constant(node, graph, 1, (shape[axis],), "the number k")})


def _number_of_results(node: OnnxNode, graph: GraphBuilder, data: Value, axis: int) -> Dimension:
    """k: an attribute at first, then an input, which may be computed."""
    extent = data.shape[axis]
    given = node.integer("k") if node.version == 1 else None
    if given is None and node.input(1).array is not None:
        given = node.constant_integer(1, "the number of results")
    if given is not None:
        if not 0 <= given <= extent:
            raise node.bad_shape(f"{given} results of an axis of {extent}", hint=_LARGER)
        return _at_most(given, node, graph, data, axis)
    sizes = node.input(1).sizes
    if sizes is not None and sizes.size == 1:
        return _at_most(sizes.item(), node, graph, data, axis)
    wanted = Numbers(graph.readable(node.input(1)), graph).cast(DType.I64).reshape()
    there = Numbers(graph.size(data.true_shape[axis]), graph)
    wrong = (wanted < 0) | (there < wanted)
    graph.require(wrong.value, graph.origin(node.input(1)), _too_many("k", node, data, axis))
    return counted_size(node, graph, wanted.at_least(0).at_most(there).value, extent)


def _at_most(
    count: Dimension, node: OnnxNode, graph: GraphBuilder, data: Value, axis: int
) -> Dimension:
    """So many results, which runs refuse that have not as many elements."""
    there = data.true_shape[axis]
    if bounds_of(there - count)[0] < 0:
        wrong = graph.emit("less", graph.size(there), graph.size(count))
        said = data if node.version == 1 else node.input(1)
        graph.require(wrong, graph.origin(said), _too_many(count, node, data, axis))
    return smaller(count, there)


def _too_many(count: Dimension | str, node: OnnxNode, data: Value, axis: int) -> str:
    there = data.true_shape[axis]
    asked = f"{node.label} asks for {count} results of axis {axis}, which has {there} elements"
    return f"{asked}: {_LARGER}"


def _ranked(operator: str, rows: Value, flags: Value | None, graph: GraphBuilder) -> Value:
    """An operator over pairs of `operators.pairs`; `flags` are those of one row."""
    if flags is not None:
        flags = graph.emit("expand", flags, shape=rows.shape)
    return graph.emit(operator, rows, flags)


@converter("Unique", 11, 28)
def unique(node: OnnxNode, graph: GraphBuilder) -> list[Value]:
    """Different elements, or slices along an axis, in order of size or of first appearance."""
    data = node.input(0)
    if data.dtype is DType.STRING:
        raise node.unsupported("an order of strings")
    axis = node.axis(node.integer("axis"), data.rank) if node.has("axis") else 0
    if node.has("axis"):
        data = in_one_piece(data, axis, graph)
        for other in range(data.rank):
            if other != axis:  # what slices have behind their ends must not differ
                data = graph.padded.filled(data, other, "zero")
        keys = _slice_keys(data, axis, graph)
    else:
        data = in_one_piece(graph.reshape(data, (data.type.size,)), 0, graph)
        keys = all_there(data, graph)
    (extent,) = keys.shape
    row = graph.reshape(keys, (1, extent))
    there = flags_of(data.dims[axis], extent, graph)
    zero, outside = graph.scalar(0, DType.I64), graph.scalar(extent, DType.I64)

    def over_pairs(operator: str, flags: Value | None) -> Value:
        return graph.reshape(_ranked(operator, row, flags, graph), (extent,))

    first = graph.emit("equal", over_pairs("count_equal_before", there), zero)
    if there is not None:
        first = graph.emit("and", first, there)
    number = over_pairs("count_less", first)  # of the class, in order of size
    ones = graph.cast(first, DType.I64)
    count = graph.emit("reduce_sum", ones, axes=(0,), keepdims=False)
    if not node.integer("sorted", 1):
        appearance = graph.emit("cumsum", ones, axis=0, exclusive=True)
        renumbered = placed(appearance, graph.emit("where", first, number, outside), graph)
        number = graph.emit("gather", renumbered, number, axis=0)
    indices = placed(positions(extent, graph), graph.emit("where", first, number, outside), graph)
    every = graph.constant(np.ones(extent, np.int64))
    added = every if there is None else graph.cast(there, DType.I64)
    counts = graph.emit(
        "scatter_rows",
        graph.constant(np.zeros((extent, 1), np.int64)),
        graph.reshape(number, (extent, 1)),
        graph.reshape(added, (extent, 1)),
        named=(extent,),
        reduction="add",
    )
    size = counted_size(node, graph, count, extent, low=0 if there is not None else 1)
    values = graph.emit("gather", as_whole(data, axis, graph), indices, axis=axis)
    return [
        with_axis(values, axis, size, graph),
        with_axis(indices, 0, size, graph),
        graph.with_dims(number, (data.dims[axis],)),
        with_axis(graph.reshape(counts, (extent,)), 0, size, graph),
    ]


def _slice_keys(data: Value, axis: int, graph: GraphBuilder) -> Value:
    """An integer per slice along an axis: equal for equal slices, and ordered as they are.

    Slices are compared from their first element on: of each pair the first elements that differ.
    """
    extent = data.shape[axis]
    order = (axis, *(other for other in range(data.rank) if other != axis))
    rows = all_there(graph.transpose(data, order), graph)
    width = rows.type.size // extent
    rows = graph.reshape(rows, (extent, width))
    left = graph.reshape(rows, (extent, 1, width))
    right = graph.reshape(rows, (1, extent, width))
    equal = graph.emit("equal", left, right)
    place = graph.emit("where", equal, graph.scalar(width, DType.I64), positions(width, graph))
    differs = graph.emit("reduce_min", place, axes=(2,), keepdims=False)
    own = graph.emit("gather_elements", rows, differs, axis=1)  # behind the last: the last
    below = graph.emit("less", graph.transpose(own, (1, 0)), own)
    return graph.emit("reduce_sum", graph.cast(below, DType.I64), axes=(1,), keepdims=False)
