"""Converter of TensorScatter."""

from __future__ import annotations

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import compacted
from tunefarm.compiler.types.dims import is_unpadded, size_of
from tunefarm.compiler.types.dtypes import DType


@converter("TensorScatter", 24)
def tensor_scatter(node: OnnxNode, graph: GraphBuilder) -> Value:
    cache, update, starts = node.input(0), node.input(1), node.optional(2)
    axis = node.axis(node.integer("axis", -2), cache.rank)
    circular = node.choice("mode", "linear", ("linear", "circular")) == "circular"
    if update.rank != cache.rank or (
        is_unpadded(cache.dims[axis]) and is_unpadded(update.dims[axis])
    ):
        return graph.emit("cache_update", cache, update, starts, axis=axis, circular=circular)
    cache, update = compacted(cache, graph), compacted(update, graph)
    _require_room(node, graph, cache, update, axis, circular)
    size, count = (size_of(value.dims[axis]) for value in (cache, update))
    if update.shape[axis] > cache.shape[axis]:
        update = graph.padded.cut(update, axis, cache.shape[axis])
    operands = cache, update, starts, graph.size(size), graph.size(count)
    return graph.emit("cache_update", *operands, axis=axis, circular=circular)


def _require_room(
    node: OnnxNode, graph: GraphBuilder, cache: Value, update: Value, axis: int, circular: bool
) -> None:
    """Have runs refuse what does not fit the part of the cache that is there."""
    starts = node.optional(2)
    size, count = (size_of(value.dims[axis]) for value in (cache, update))
    last = graph.size(size - count)
    none = graph.scalar(0, DType.I64)
    place = none if circular or starts is None else graph.cast(starts, DType.I64)
    wrong = graph.emit("or", graph.emit("less", last, place), graph.emit("less", place, none))
    if wrong.rank:
        flags = graph.cast(wrong, DType.I64)
        some = graph.emit("reduce_max", flags, axes=(0,), keepdims=False)
        wrong = graph.emit("greater", some, none)
    what = "places it has leave" if starts is not None and not circular else "cache has"
    reason = f"{node.label} writes {count} elements along axis {axis}, and the {what} no room for"
    operand = update if starts is None or circular else starts
    graph.require(wrong, graph.origin(operand), f"{reason} them among {size} elements")
