"""Operators whose result is known at import: constants, shapes, ranges."""

from __future__ import annotations

import math

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.shape import sized_fill, sized_range
from tunefarm.compiler.frontend.run_time_sizes import object_array
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import product_of, static_shape
from tunefarm.compiler.types.tensor_type import Array


@converter("Constant", 1, 9, 11, 12, 13, 19, 21, 23, 24, 25)
def constant(node: OnnxNode, graph: GraphBuilder) -> Value:
    if len(node.attributes) != 1:
        raise node.invalid(f"needs one attribute with the value, and has {len(node.attributes)}")
    name, value = next(iter(node.attributes.items()))
    if name in ("value", "sparse_value") and isinstance(value, np.ndarray):
        return graph.constant(value)
    if name in ("value_float", "value_floats"):
        return graph.constant(np.asarray(value, np.float32))
    if name in ("value_int", "value_ints"):
        return graph.constant(np.asarray(value, np.int64))
    if name in ("value_string", "value_strings"):
        return graph.constant(np.array(value, object))
    raise node.unsupported(f"the attribute {name}")


@converter("Shape", 1, 13, 15, 19, 21, 23, 24, 25)
def shape(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Version 15 can cut axes off; out-of-range ends are clamped."""
    value = node.input(0)
    start = node.integer("start", 0)
    end = node.integer("end", value.rank)
    sizes = value.true_shape[start if start >= -value.rank else 0 : end]
    numbers = static_shape(sizes)
    return graph.integers_of(object_array(sizes)) if numbers is None else graph.integers(numbers)


@converter("Size", 1, 13, 19, 21, 23, 24, 25)
def size(node: OnnxNode, graph: GraphBuilder) -> Value:
    size = product_of(node.input(0).true_shape)
    if isinstance(size, int):
        return graph.scalar(size, DType.I64)
    return graph.integers_of(object_array((size,)).reshape(()))


@converter("ConstantOfShape", 9, 20, 21, 23, 24, 25)
def constant_of_shape(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Small results are constants (they may be shapes), large ones an `expand`."""
    value = node.attributes.get("value")
    fill: Array = np.zeros((), np.float32)
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise node.invalid("the value must have one element")
        fill = value.reshape(())
    if node.input(0).sizes is not None:
        return sized_fill(node, graph.constant(fill), graph)
    wanted = node.constant_integers(0, "the shape")
    if any(extent < 0 for extent in wanted):
        raise node.bad_shape(f"the shape {list(wanted)} has a negative dimension")
    if math.prod(wanted) <= 4096:
        return graph.constant(np.full(wanted, fill))
    return graph.emit("expand", graph.constant(fill), shape=wanted)


@converter("Range", 11, 27)
def range_(node: OnnxNode, graph: GraphBuilder) -> Value:
    sized = sized_range(node, graph)
    if sized is not None:
        return sized
    arrays = [
        node.constant(position, f"the {name}")
        for position, name in enumerate(("start", "limit", "delta"))
    ]
    if any(array.size != 1 for array in arrays):
        raise node.bad_shape("start, limit and delta must be scalars")
    start, limit, delta = (array.reshape(-1)[0].item() for array in arrays)
    if delta == 0 or not all(map(math.isfinite, (start, limit, delta))):
        raise node.invalid(f"there is no range from {start} to {limit} in steps of {delta}")
    count = max(math.ceil((limit - start) / delta), 0)
    graph.check_array((count,), 8)
    steps = np.arange(count, dtype=arrays[0].dtype)
    return graph.constant((start + steps * delta).astype(arrays[0].dtype))


@converter("EyeLike", 9, 22)
def eye_like(node: OnnxNode, graph: GraphBuilder) -> Value:
    like = graph.padded.dense(node.input(0))
    if like.rank != 2:
        raise node.bad_shape(f"the input must be a matrix, not {like.type}")
    dtype = like.dtype
    if node.has("dtype"):
        dtype = dtype_of(node.integer("dtype"), f"{node.label}: the result")
    graph.check_array(like.shape, dtype.bytes)
    rows, columns = like.shape
    k = max(min(node.integer("k", 0), columns), -rows)
    eye = graph.constant(np.eye(rows, columns, k, dtype=dtype.numpy))
    return graph.padded.begins(eye, like.dims)
