"""Rotary position embedding: ONNX's operator, and the one of onnxruntime's that came before it."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.dims import ONE
from tunefarm.compiler.types.dtypes import DType


@converter("RotaryEmbedding", 23)
def rotary_embedding(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Tables are [positions, pairs] and picked by position, or [batch, tokens, pairs]."""
    positions = node.optional(3)
    tables = [node.input(1), node.input(2)]
    if positions is not None:
        tables = [graph.emit("gather", table, positions, axis=0) for table in tables]
    return _rotated(node, node.input(0), tables, graph)


@converter("RotaryEmbedding", 1, domain="com.microsoft")
def contributed_rotary_embedding(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Positions are those of all tokens, or that of the first one."""
    data, positions = node.input(0), node.input(1)
    if node.integer("is_packed_batching", 0):
        raise node.unsupported("packed batches")
    if node.floating("scale", 1.0) != 1.0:
        raise node.unsupported("a scale")
    if data.rank not in (3, 4):
        raise node.bad_shape(f"{data.type} has neither three nor four axes")
    if positions.type.size == 1:
        tokens = np.arange(data.shape[-2], dtype=np.int64).reshape(1, -1)
        first = graph.cast(graph.reshape(positions, (1, 1)), DType.I64)
        steps = graph.padded.begins(graph.constant(tokens), (ONE, data.dims[-2]))
        positions = graph.emit("add", first, steps)
    tables = [graph.emit("gather", node.input(at), positions, axis=0) for at in (2, 3)]
    return _rotated(node, data, tables, graph)


def _rotated(node: OnnxNode, data: Value, tables: list[Value], graph: GraphBuilder) -> Value:
    """Of [batch, heads, tokens, features], or of [batch, tokens, features of all heads]."""
    given, cosine = data, tables[0]
    if cosine.rank != 3 or tables[1].shape != cosine.shape:
        raise node.bad_shape(f"the tables {cosine.type} and {tables[1].type} are no rows of pairs")
    pairs = cosine.shape[-1]
    width = node.integer("rotary_embedding_dim", 0) or 2 * pairs
    if width != 2 * pairs:
        raise node.bad_shape(f"the tables {cosine.type} are not those of {width} features")
    if data.rank == 3:
        heads = node.integer("num_heads", 0) or data.shape[-1] // width
        if heads < 1 or data.shape[-1] % heads:
            raise node.bad_shape(f"{data.type} does not consist of {heads} heads")
        data = graph.reshape(data, (*data.shape[:2], heads, data.shape[-1] // heads))
    batch, tokens, _ = cosine.shape
    shape = (batch, 1, tokens, pairs) if given.rank == 4 else (batch, tokens, 1, pairs)
    wide = [graph.reshape(table, shape) for table in tables]
    interleaved = bool(node.integer("interleaved", 0))
    turned = graph.emit("rotary", data, *wide, width=width, interleaved=interleaved)
    return graph.reshape(turned, given.shape)
