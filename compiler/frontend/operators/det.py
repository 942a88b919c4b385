"""Converter of Det: Gaussian elimination with row pivoting, of a batch of matrices at once."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.data_sizes import iota
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.dims import is_unpadded, size_of
from tunefarm.compiler.types.dtypes import DType


@converter("Det", 11, 22)
def det(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = node.input(0)
    if data.rank < 2 or data.shape[-1] != data.shape[-2]:
        raise node.bad_shape(f"{data.type} is no batch of square matrices")
    if not all(map(is_unpadded, data.dims[-2:])):
        raise graph.refusal(f"a determinant of {size_of(data.dims[-1])} rows", [data])
    wide = DType.F64 if data.dtype is DType.F64 else DType.F32
    rows = graph.cast(data, wide)
    rank, product = data.rank, None
    for _ in range(data.shape[-1]):
        pivot, rows = _eliminated(graph, rows)
        product = pivot if product is None else graph.emit("mul", product, pivot)
    if product is None:  # matrices without rows
        one = np.ones(data.shape[:-2], wide.numpy)
        return graph.cast(graph.constant(one), data.dtype)
    squeezed = graph.pick(graph.pick(product, rank - 1, 0), rank - 2, 0)
    return graph.cast(squeezed, data.dtype)


def _eliminated(graph: GraphBuilder, rows: Value) -> tuple[Value, Value]:
    """The pivot of the first column, [..., 1, 1], with the sign of the rows' exchange, and the
    matrices without its row and column."""
    rank, count = rows.rank, rows.shape[-1]
    row_axis, column_axis = rank - 2, rank - 1

    if count == 1:
        return rows, rows
    column = graph.part(rows, column_axis, 0, 1)
    size = graph.emit("abs", column)
    place = graph.emit("arg_max", size, axis=row_axis, keepdims=True)
    wide_place = graph.emit("expand", place, shape=(*rows.shape[:-2], 1, count))
    chosen = graph.emit("gather_elements", rows, wide_place, axis=row_axis)
    pivot = graph.part(chosen, column_axis, 0, 1)
    positions = graph.reshape(iota(count, graph), (count, 1))
    takes_first = graph.emit("equal", graph.part(positions, 0, 1, count - 1), place)
    first = graph.part(rows, row_axis, 0, 1)
    others = graph.part(rows, row_axis, 1, count - 1)
    others = graph.emit("where", takes_first, first, others)
    zero, one = graph.scalar(0, rows.dtype), graph.scalar(1, rows.dtype)
    divisor = graph.emit("where", graph.emit("equal", pivot, zero), one, pivot)
    factors = graph.emit("div", graph.part(others, column_axis, 0, 1), divisor)
    rest = graph.emit(
        "sub",
        graph.part(others, column_axis, 1, count - 1),
        graph.emit("mul", factors, graph.part(chosen, column_axis, 1, count - 1)),
    )
    stays = graph.emit("equal", place, graph.scalar(0, DType.I64))
    signed = graph.emit("where", stays, pivot, graph.emit("neg", pivot))
    return signed, rest
