"""Random numbers: Dropout in training, and the generators.

Numbers are drawn by NumPy when the model is imported, as ONNX's reference evaluator draws them from
a seed; a node without one has its own from its place in the model. So a build can be repeated, and
every run of it sees the same numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.dtypes import FLOATS, DType
from tunefarm.compiler.types.padded_shape import size_of


def _generator(node: OnnxNode) -> np.random.RandomState:
    """NumPy's generator with the node's seed."""
    if node.has("seed"):
        seed = node.attributes["seed"]
        if not isinstance(seed, int | float) or not 0 <= seed < 2**32:
            raise node.invalid(f"the seed {seed} is not of 0 to 2**32 - 1")
        return np.random.RandomState(int(seed))
    return np.random.RandomState(zlib.crc32(node.label.encode()))


def _type(node: OnnxNode, default: DType) -> DType:
    given = node.integer("dtype", 0)
    dtype = dtype_of(given, f"{node.label}: the result") if given else default
    return dtype


def _uniform(node: OnnxNode, shape: Sequence[int], graph: GraphBuilder) -> Value:
    """Numbers of 0 to 1, without 1, in f64 as they were drawn."""
    graph.check_array(shape, DType.F64.bytes)
    return graph.constant(np.asarray(_generator(node).uniform(0, 1.0, tuple(shape))))


@converter("Dropout", 1, 6, 7, 10, 12, 13, 22)
def dropout(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """In inference the data itself, and a mask of ones; in training by chance zero, else scaled."""
    data, training = node.input(0), node.optional(2) if node.version >= 12 else None
    is_test = node.version >= 7 or bool(node.integer("is_test", 0))
    if training is not None and (training.array is None or training.array.reshape(-1)[0]):
        return _dropped(node, data, training, graph)
    if not is_test:
        return _dropped(node, data, None, graph)
    return [data, _ones(node, data, graph)] if node.wants(1) else [data]


def _ones(node: OnnxNode, data: Value, graph: GraphBuilder) -> Value:
    dtype = DType.BOOL if node.version >= 10 else data.dtype
    ones = graph.emit("expand", graph.scalar(1, dtype), shape=data.shape)
    return graph.with_dims(ones, data.dims)


def _dropped(
    node: OnnxNode, data: Value, training: Value | None, graph: GraphBuilder
) -> Sequence[Value]:
    """Data where a number drawn for it is not below the ratio, which may be dynamic."""
    if node.version >= 12:
        given = node.optional(1)
        ratio = graph.scalar(0.5, DType.F64) if given is None else graph.cast(given, DType.F64)
    else:
        ratio = graph.scalar(node.floating("ratio", 0.5), DType.F64)
    ratio = graph.reshape(ratio, ())
    if training is not None and training.array is None:
        off = graph.scalar(0.0, DType.F64)
        ratio = graph.emit("where", graph.reshape(training, ()), ratio, off)
    drawn = graph.padded.begins(_uniform(node, data.shape, graph), data.dims)
    kept = graph.emit("greater_equal", drawn, ratio)
    share = graph.emit("sub", graph.scalar(1.0, DType.F64), ratio)
    scale = graph.cast(graph.emit("reciprocal", share), data.dtype)
    scaled = graph.emit("mul", data, scale)
    result = graph.emit("where", kept, scaled, graph.scalar(0, data.dtype))
    return [result, kept if node.version >= 10 else graph.cast(kept, data.dtype)]


@converter("RandomUniform", 1, 22)
def random_uniform(node: OnnxNode, graph: GraphBuilder) -> Value:
    return _drawn_uniform(node, node.integers("shape"), DType.F32, graph)


@converter("RandomUniformLike", 1, 22)
def random_uniform_like(node: OnnxNode, graph: GraphBuilder) -> Value:
    like = node.input(0)
    return graph.padded.begins(_drawn_uniform(node, like.shape, like.dtype, graph), like.dims)


def _drawn_uniform(
    node: OnnxNode, shape: Sequence[int], default: DType, graph: GraphBuilder
) -> Value:
    low, high = node.floating("low", 0.0), node.floating("high", 1.0)
    drawn = _uniform(node, shape, graph).array
    assert drawn is not None
    return _scaled(node, np.asarray(drawn), high - low, low, default, graph)


@converter("RandomNormal", 1, 22)
def random_normal(node: OnnxNode, graph: GraphBuilder) -> Value:
    return _drawn_normal(node, node.integers("shape"), DType.F32, graph)


@converter("RandomNormalLike", 1, 22)
def random_normal_like(node: OnnxNode, graph: GraphBuilder) -> Value:
    like = node.input(0)
    return graph.padded.begins(_drawn_normal(node, like.shape, like.dtype, graph), like.dims)


def _drawn_normal(
    node: OnnxNode, shape: Sequence[int], default: DType, graph: GraphBuilder
) -> Value:
    graph.check_array(shape, DType.F64.bytes)
    drawn = _generator(node).standard_normal(tuple(shape))
    scale, mean = node.floating("scale", 1.0), node.floating("mean", 0.0)
    return _scaled(node, np.asarray(drawn), scale, mean, default, graph)


def _scaled(
    node: OnnxNode,
    drawn: np.ndarray,
    scale: float,
    shift: float,
    default: DType,
    graph: GraphBuilder,
) -> Value:
    """As ONNX's reference rounds it: in the result's type before and after each step."""
    dtype = _type(node, default)
    if dtype not in FLOATS:
        raise node.unsupported(f"random numbers of {dtype}")
    numbers = drawn.astype(dtype.numpy)
    numbers = (numbers * np.asarray(scale, dtype.numpy)).astype(dtype.numpy)
    return graph.constant(numbers + np.asarray(shift, dtype.numpy), dtype)


@converter("Bernoulli", 15, 22)
def bernoulli(node: OnnxNode, graph: GraphBuilder) -> Value:
    """1 with the probability that the data is, else 0."""
    data = node.input(0)
    drawn = graph.padded.begins(_uniform(node, data.shape, graph), data.dims)
    below = graph.emit("less", drawn, graph.cast(data, DType.F64))
    return graph.cast(below, _type(node, data.dtype))


@converter("Multinomial", 7, 22)
def multinomial(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Classes [batch, samples] with the probabilities whose logarithms are the data, unnormalised.

    A sample is the number of classes up to which the probabilities sum to less than was drawn.
    """
    data, samples = node.input(0), node.integer("sample_size", 1)
    if data.rank != 2 or samples < 1:
        raise node.bad_shape(f"{samples} samples of {data.type}")
    dtype = dtype_of(node.integer("dtype", 6), f"{node.label}: the result")
    batch, classes = data.shape
    share = graph.emit("softmax", graph.cast(data, DType.F64), axis=1)
    total = graph.emit("cumsum", share, axis=1)
    drawn = graph.reshape(_uniform(node, (batch, samples), graph), (batch, samples, 1))
    drawn = graph.padded.begins(drawn, (data.dims[0], *drawn.dims[1:]))
    passed = graph.emit("less_equal", graph.reshape(total, (batch, 1, classes)), drawn)
    count = graph.emit("reduce_sum", graph.cast(passed, dtype), axes=(2,), keepdims=False)
    return graph.emit("min", count, graph.size(size_of(data.dims[1]) - 1, dtype))
