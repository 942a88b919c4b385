"""The first elements of rows in their order: of long rows those are found that are among them.

To look at all pairs of a row takes time that grows with the square of its length. So the key of the
last of the k first elements is found bit by bit, each time by counting what is not below a guess.
"""

from __future__ import annotations

import numpy as np

from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.types.dtypes import DType

_LONG = 512


def best_of_rows(
    graph: GraphBuilder, rows: Value, flags: Value | None, most: int, *, largest: bool
) -> Value:
    """Positions [rows, most] of the largest or smallest elements in order, of equal ones the first.

    `rows` and `flags` are [rows, elements]; only elements with a flag count, which stand before the
    others. Positions behind the last element that is there are any of the row. NaN is greater than
    all numbers.
    """
    operator = "rank_descending" if largest else "rank_ascending"
    if rows.shape[1] < max(_LONG, 2 * most):
        return _ordered(graph, operator, rows, flags, most)
    taken = _positions(graph, _taken(graph, _keys(graph, rows, flags, largest), most), most)
    if flags is not None:
        flags = graph.emit("gather_elements", flags, taken, axis=1)
    values = graph.emit("gather_elements", rows, taken, axis=1)
    order = _ordered(graph, operator, values, flags, most)
    return graph.emit("gather_elements", taken, order, axis=1)


def _keys(graph: GraphBuilder, rows: Value, flags: Value | None, largest: bool) -> Value:
    """Integers that are the greater the earlier elements come; the least one for what is absent."""
    wide = rows.dtype is DType.F64 or rows.dtype in (DType.I64, DType.U64, DType.U32)
    integer, real = (DType.I64, DType.F64) if wide else (DType.I32, DType.F32)
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
    if flags is not None:
        keys = graph.emit("where", flags, keys, graph.scalar(limits.min, integer))
    return keys


def _taken(graph: GraphBuilder, keys: Value, most: int) -> Value:
    """Which elements are the first of their rows: `most` of each."""
    dtype, count = keys.dtype, graph.scalar(most, DType.I64)

    def counted(what: Value) -> Value:
        ones = graph.cast(what, DType.I64)
        return graph.emit("reduce_sum", ones, axes=(1,), keepdims=True)

    least = np.iinfo(dtype.numpy).min
    lowest = graph.constant(np.full((keys.shape[0], 1), least, dtype.numpy))
    bits = [least, *(1 << bit for bit in reversed(range(dtype.bits - 1)))]
    loop, most_steps = graph.fresh_number(), graph.scalar(len(bits), DType.I64)
    known = graph.emit("loop_state", lowest, loop=loop, number=0)
    number = graph.emit("loop_index", most_steps, loop=loop)
    step = graph.emit("gather", graph.constant(np.array(bits, dtype.numpy)), number, axis=0)
    guess = graph.emit("add", known, step)
    enough = graph.emit("greater_equal", counted(graph.emit("greater_equal", keys, guess)), count)
    following = graph.emit("where", enough, guess, known)
    bounds = {"loop": loop, "states": 1, "most": len(bits), "number": 0}
    last = graph.emit("loop_result", None, None, None, lowest, following, **bounds)
    above, equal = graph.emit("greater", keys, last), graph.emit("equal", keys, last)
    left = graph.emit("sub", count, counted(above))
    before = graph.emit("cumsum", graph.cast(equal, DType.I64), axis=1, exclusive=True)
    first = graph.emit("and", equal, graph.emit("less", before, left))
    return graph.emit("or", above, first)


def _positions(graph: GraphBuilder, flags: Value, most: int) -> Value:
    """Where the flags of each row are set, `most` of each, in order."""
    rows, extent = flags.shape
    graph.check_array((rows, extent), 8)
    places = graph.emit("cumsum", graph.cast(flags, DType.I64), axis=1, exclusive=True)
    begins = graph.constant(np.arange(rows).reshape(-1, 1) * most)
    places = graph.emit("add", places, begins)
    places = graph.emit("where", flags, places, graph.scalar(rows * most, DType.I64))
    numbers = np.broadcast_to(np.arange(extent, dtype=np.int64), (rows, extent))
    found = graph.emit(
        "scatter_rows",
        graph.constant(np.zeros((rows * most, 1), np.int64)),
        graph.reshape(places, (rows * extent, 1)),
        graph.constant(np.ascontiguousarray(numbers).reshape(-1, 1)),
        named=(rows * most,),
    )
    return graph.reshape(found, (rows, most))


def _ordered(
    graph: GraphBuilder, operator: str, rows: Value, flags: Value | None, most: int
) -> Value:
    """As `best_of_rows`: each element's rank says where it goes."""
    ranks = graph.emit(operator, rows, flags)
    if flags is not None:
        ranks = graph.emit("where", flags, ranks, graph.scalar(rows.shape[1], DType.I64))
    graph.check_array(rows.shape, 8)
    numbers = np.broadcast_to(np.arange(rows.shape[1], dtype=np.int64), rows.shape)
    three = (*rows.shape, 1)
    places = graph.emit(
        "scatter_elements",
        graph.constant(np.zeros(three, np.int64)),
        graph.reshape(ranks, three),
        graph.constant(numbers.reshape(three)),
    )
    return graph.part(graph.reshape(places, rows.shape), 1, 0, most)
