"""The first elements of rows in their order: of long rows those are found that are among them.

To look at all pairs of a row takes time that grows with the square of its length. So the key of the
last of the k first elements is found bit by bit, each time by counting what is not below a guess.
Rows and elements that need not be there stay axes with sizes: what is not there is not computed.
"""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.data_sizes import with_axis
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.types.dims import ONE, is_unpadded, size_of, whole
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import smaller
from tunefarm.compiler.types.tensor_type import Attribute

_FEW = 16
"""Results that are found faster by comparing all places with each than by a scatter."""
_PAIR, _ELEMENT, _SEARCH = 0.1, 4.0, 5_000.0
"""Nanoseconds, measured: of a pair, of an element that is searched, of the steps of a search."""


def best_of_rows(graph: GraphBuilder, rows: Value, most: int, *, largest: bool) -> Value:
    """Positions [rows, most] of the largest or smallest elements in order, of equal ones the first.

    `rows` is [rows, elements], of which some may not be there. Positions behind the last element
    that is there are any of the row. NaN is greater than all numbers.
    """
    operator = "rank_descending" if largest else "rank_ascending"
    if _pairs_are_faster(rows.shape[0], rows.shape[1], most):
        return _ordered(graph, operator, rows, most)
    taken = _positions(graph, _taken(graph, _keys(graph, rows, largest), most), most)
    axis = rows.dims[1]
    if not is_unpadded(axis):
        size = smaller(most, size_of(axis))
        taken = with_axis(taken, 1, size, graph)
    values = graph.emit("gather_elements", rows, taken, axis=1)
    order = _ordered(graph, operator, values, most)
    return graph.emit("gather_elements", taken, order, axis=1)


def _pairs_are_faster(rows: int, extent: int, most: int) -> bool:
    """Whether all pairs of all rows take less time than a search and the pairs that it leaves."""
    if extent < 2 * most:
        return True
    searched = _SEARCH + rows * (extent * _ELEMENT + most**2 * _PAIR)
    return rows * extent**2 * _PAIR < searched


def _keys(graph: GraphBuilder, rows: Value, largest: bool) -> Value:
    """Integers that are the greater the earlier elements come; the minimum for what is absent."""
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
    return graph.padded.filled(keys, 1, "lowest")


def _taken(graph: GraphBuilder, keys: Value, most: int) -> Value:
    """Which elements are the first of their rows: `most` of each."""
    dtype, count = keys.dtype, graph.scalar(most, DType.I64)

    def count_true(what: Value) -> Value:
        ones = graph.cast(what, DType.I64)
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
    before = graph.emit("cumsum", graph.cast(equal, DType.I64), axis=1, exclusive=True)
    first = graph.emit("and", equal, graph.emit("less", before, left))
    return graph.emit("or", above, first)


def _positions(graph: GraphBuilder, flags: Value, most: int) -> Value:
    """Where the flags of each row are set, `most` of each, in order."""
    rows, extent = flags.shape
    graph.check_array((rows, extent), 8)
    places = graph.emit("cumsum", graph.cast(flags, DType.I64), axis=1, exclusive=True)
    nowhere = graph.scalar(np.iinfo(np.int32).min, DType.I64)
    return _placed(graph, graph.emit("where", flags, places, nowhere), most)


def _ordered(graph: GraphBuilder, operator: str, rows: Value, most: int) -> Value:
    """As `best_of_rows`: each element's rank says where it goes."""
    axis = rows.dims[1]
    end = None if is_unpadded(axis) else graph.reshape(graph.size(size_of(axis)), (1,))
    ranks = graph.emit(operator, rows, None, end)
    return _placed(graph, ranks, most)


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
    return graph.part(_scattered(graph, places, extent), 1, 0, count)


def _scattered(graph: GraphBuilder, places: Value, count: int) -> Value:
    """[rows, count]: which element of its row has each place; 0 where none has it."""
    rows, extent = places.shape
    graph.check_array((rows, extent), 8)
    numbers = np.broadcast_to(np.arange(extent, dtype=np.int64), (rows, extent))
    zeros = graph.constant(np.zeros((rows, count, 1), np.int64))
    updates = graph.constant(np.ascontiguousarray(numbers).reshape(rows, extent, 1))
    three = graph.reshape(places, (rows, extent, 1))
    found = graph.emit(
        "scatter_elements",
        graph.with_dims(zeros, (three.dims[0], whole(count), ONE)),
        three,
        graph.with_dims(updates, three.dims),
    )
    return graph.reshape(found, (rows, count))
