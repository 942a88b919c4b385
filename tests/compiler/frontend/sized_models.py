"""Graphs with run-time sizes, called as their signature says, with anything in their padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from tests.onnxruntime_session import exact_session
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.evaluate_graph import evaluate_graph
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.signature import SIZES, AxisSource, ResultSource, ValueSource
from tunefarm.compiler.types.sizes import value_of
from tunefarm.compiler.types.tensor_type import Array, TensorType

POISON = 10**9


def symbols_of_call(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The symbols that the arguments settle."""
    symbols: dict[str, int] = {}
    for source in graph.signature.sources:
        if isinstance(source, AxisSource):
            symbols[source.symbol.name] = inputs[source.input].shape[source.axis]
        elif isinstance(source, ValueSource):
            symbols[source.symbol.name] = int(inputs[source.input].reshape(-1)[source.position])
    return symbols


def called(graph: Graph, inputs: Mapping[str, Array], *, repeats: bool = False) -> list[Array]:
    """The true parts of the outputs for arguments of true shapes; padding is poison, or `repeats`
    what is there."""
    signature = graph.signature
    symbols = symbols_of_call(graph, inputs)
    for item in signature.equalities:
        left, right = value_of(item.left, symbols), value_of(item.right, symbols)
        assert left == right, f"{item.reason}: {item.left} = {left}, {item.right} = {right}"
    values = {
        port.name: padded(inputs[port.name], port.padded, graph.types[port.name], symbols, repeats)
        for port in signature.inputs
    }
    if signature.sizes:
        values[SIZES] = np.array([value_of(size, symbols) for size in signature.sizes], np.int64)
    computed = [source for source in signature.sources if isinstance(source, ResultSource)]
    plain = evaluate_graph(graph, values) if computed else {}
    for source in computed:
        symbols[source.symbol.name] = int(plain[source.output][source.position])
    found = _evaluated(graph, values, symbols)
    for check in signature.checks:
        assert not found[check.output].any(), f"{check.operand!r} does not fit: {check.reason}"
    return [true_part(found[port.name], port.padded, symbols) for port in signature.outputs]


def _evaluated(
    graph: Graph, inputs: Mapping[str, Array], symbols: Mapping[str, int]
) -> dict[str, Array]:
    """The values of a graph, with anything where it says that nobody reads."""

    def behind(name: str, value: Array) -> Array:
        dims = graph.unread.get(name)
        if dims is None:
            return value
        return padded(true_part(np.asarray(value), dims, symbols), dims, graph.types[name], symbols)

    return evaluate_graph(graph, inputs, behind)


def poison_of(dtype: DType) -> float | int | bool:
    """NaN, a large number, or true."""
    if dtype.is_float:
        return float("nan")
    return min(POISON, dtype.limits[1]) if dtype.is_integer else True


def padded(
    array: Array,
    dims: PaddedShape,
    type: TensorType,
    symbols: Mapping[str, int],
    repeats: bool = False,
) -> Array:
    """The array in its padded place; padding is NaN, a large number, or true, or its elements."""
    extents = [extent for axis in dims for _, extent in axis]
    whole = np.full(extents, poison_of(type.dtype)).astype(type.dtype.numpy)
    if repeats and array.size:
        whole = np.resize(array, extents)
    sizes = [value_of(true, symbols) for axis in dims for true, _ in axis]
    assert array.shape == tuple(
        int(np.prod([value_of(true, symbols) for true, _ in axis])) for axis in dims
    )
    whole[tuple(map(slice, sizes))] = array.reshape(sizes)
    return whole.reshape(type.shape)


def true_part(array: Array, dims: PaddedShape, symbols: Mapping[str, int]) -> Array:
    """What is there of a padded array, dense."""
    apart = array.reshape([extent for axis in dims for _, extent in axis])
    sizes = [value_of(true, symbols) for axis in dims for true, _ in axis]
    shape = [int(np.prod([value_of(true, symbols) for true, _ in axis])) for axis in dims]
    return apart[tuple(map(slice, sizes))].reshape(shape)


def check_sizes(
    proto: onnx.ModelProto, shapes: Shapes, calls: Sequence[Mapping[str, Array]]
) -> Graph:
    """The imported graph, whose outputs must be onnxruntime's for all of these arguments."""
    graph = import_model_proto(proto, shapes)
    verify_graph(graph)
    session = exact_session(proto)
    for number, inputs in enumerate(calls):
        expected = session.run([output.name for output in proto.graph.output], dict(inputs))
        for repeats in (False, True)[: 1 + (number == 0)]:
            found = called(graph, inputs, repeats=repeats)
            for own, wanted in zip(found, expected, strict=True):
                assert own.shape == wanted.shape
                difference = np.abs(own.astype(np.float64) - wanted.astype(np.float64))
                assert np.all(difference <= 2e-4 * (1 + np.abs(wanted.astype(np.float64))))
    return graph
