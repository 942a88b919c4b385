"""Graphs with run-time sizes, called as their signature says, with anything in their padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

from compiler.frontend.import_onnx import import_model_proto
from compiler.graph.ir import Graph
from compiler.graph.verify import verify_graph
from compiler.types.dims import Dims
from compiler.types.extents import Shapes
from compiler.types.signature import SIZES, AxisSource, ResultSource
from compiler.types.sizes import value_of
from compiler.types.tensor_type import Array, TensorType
from tests.compiler.frontend.onnx_models import outputs_of

POISON = 10**9


def symbols_of_call(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The symbols that the arguments' shapes settle."""
    assert graph.signature is not None
    return {
        source.symbol.name: inputs[source.input].shape[source.axis]
        for source in graph.signature.sources
        if isinstance(source, AxisSource)
    }


def called(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    """The true parts of the outputs for arguments of true shapes."""
    signature = graph.signature
    assert signature is not None
    symbols = symbols_of_call(graph, inputs)
    for item in signature.equalities:
        left, right = value_of(item.left, symbols), value_of(item.right, symbols)
        assert left == right, f"{item.reason}: {item.left} = {left}, {item.right} = {right}"
    values = {
        port.name: padded(inputs[port.name], port.padded, graph.types[port.name], symbols)
        for port in signature.inputs
    }
    if signature.sizes:
        values[SIZES] = np.array([value_of(size, symbols) for size in signature.sizes], np.int64)
    found = dict(zip(graph.outputs, outputs_of(graph, values), strict=True))
    for source in signature.sources:
        if isinstance(source, ResultSource):
            symbols[source.symbol.name] = int(found[source.output][source.position])
    return [true_part(found[port.name], port.padded, symbols) for port in signature.outputs]


def padded(array: Array, dims: Dims, type: TensorType, symbols: Mapping[str, int]) -> Array:
    """The array in its padded place; padding is NaN, a large number, or true."""
    poison = float("nan") if type.dtype.is_float else True if array.dtype == np.bool_ else POISON
    if type.dtype.is_integer:
        poison = min(POISON, type.dtype.limits[1])
    whole = np.full([extent for axis in dims for _, extent in axis], poison, type.dtype.numpy)
    sizes = [value_of(true, symbols) for axis in dims for true, _ in axis]
    assert array.shape == tuple(
        int(np.prod([value_of(true, symbols) for true, _ in axis])) for axis in dims
    )
    whole[tuple(map(slice, sizes))] = array.reshape(sizes)
    return whole.reshape(type.shape)


def true_part(array: Array, dims: Dims, symbols: Mapping[str, int]) -> Array:
    """What is there of a padded array, dense."""
    apart = array.reshape([extent for axis in dims for _, extent in axis])
    sizes = [value_of(true, symbols) for axis in dims for true, _ in axis]
    shape = [int(np.prod([value_of(true, symbols) for true, _ in axis])) for axis in dims]
    return apart[tuple(map(slice, sizes))].reshape(shape)


def check_sizes(
    proto: onnx.ModelProto, shapes: Shapes, calls: Sequence[Mapping[str, Array]]
) -> Graph:
    """The imported graph, whose outputs must be onnxruntime's for all of these arguments."""
    onnxruntime = pytest.importorskip("onnxruntime")
    graph = import_model_proto(proto, shapes)
    verify_graph(graph)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for inputs in calls:
        expected = session.run([output.name for output in proto.graph.output], dict(inputs))
        for found, wanted in zip(called(graph, inputs), expected, strict=True):
            assert found.shape == wanted.shape
            difference = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
            assert np.all(difference <= 2e-4 * (1 + np.abs(wanted.astype(np.float64))))
    return graph
