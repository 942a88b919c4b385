"""Graphs with run-time sizes made by hand, and what they must give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import ModelProto
from onnx.parser import parse_model

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import (
    SIZES,
    AxisSource,
    Check,
    Equality,
    ResultSource,
    Signature,
    SizedPort,
    Source,
    ValueSource,
)
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol, divide
from tunefarm.compiler.types.tensor_type import TensorType

_SIZES = 8


def symbol(name: str, low: int, high: int) -> tuple[Symbol, Size]:
    """A symbol, and the size that it is."""
    size = Symbol.of(name, low, high)
    assert isinstance(size, Size)
    return Symbol(name, low, high), size


def port(name: str, dtype: DType, *axes: tuple[Dimension, int] | int) -> SizedPort:
    """A port whose axes are numbers, or sizes and what they are padded to."""
    pairs = [(axis, axis) if isinstance(axis, int) else axis for axis in axes]
    return SizedPort(name, dtype, tuple(t for t, _ in pairs), tuple((pair,) for pair in pairs))


class SizedMaker(GraphMaker):
    """A graph with a signature: inputs are ports, and sizes are asked for by `filled`."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: list[SizedPort] = []
        self.sources: list[Source] = []
        self.sizes: list[Dimension] = []

    def port(self, name: str, dtype: DType, *axes: tuple[Dimension, int] | int) -> str:
        made = port(name, dtype, *axes)
        self.ports.append(made)
        self.inputs.append(name)
        self.types[name] = made.type
        return name

    def filled(self, value: str, axis: int, size: Dimension, with_: str = "zero") -> str:
        """The value with what lies behind the size replaced."""
        number = self._number(size)
        return self.node("fill", value, SIZES, axis=axis, number=number, value=with_)

    def size(self, size: Dimension) -> str:
        """The size as a value."""
        number = self._number(size)
        return self.node("slice", SIZES, starts=(number,), steps=(1,), shape=(1,))

    def _number(self, size: Dimension) -> int:
        # the type is known when all sizes are: long enough for what these tests ask for
        self.types[SIZES] = TensorType(DType.I64, (_SIZES,))
        if size not in self.sizes:
            self.sizes.append(size)
        return self.sizes.index(size)

    def sized(
        self,
        outputs: dict[str, tuple[tuple[Dimension, int] | int, ...]],
        equalities: tuple[Equality, ...] = (),
        more: tuple[str, ...] = (),
        *,
        verified: bool = True,
    ) -> Graph:
        """The graph of these outputs, `more` of them are no ports."""
        self.sizes += [1] * (_SIZES - len(self.sizes))
        ports = tuple(port(name, self.types[name].dtype, *axes) for name, axes in outputs.items())
        signature = Signature(
            tuple(self.ports), ports, tuple(self.sources), tuple(self.sizes), equalities
        )
        inputs = (*self.inputs, SIZES)
        self.types[SIZES] = TensorType(DType.I64, (_SIZES,))
        graph = Graph(
            "sized",
            inputs,
            (*outputs, *more),
            tuple(self.nodes),
            self.types,
            self.constants,
            signature,
        )
        if verified:
            verify_graph(graph)
        return graph


BATCH, LENGTH, WIDTH = 4, 7, 5


def rows_graph() -> Graph:
    """Of x: f32[batch:1..4, length:0..7, 5] the relu of all, and the sums over length."""
    maker = SizedMaker()
    (b, batch), (n, length) = symbol("batch", 1, BATCH), symbol("length", 0, LENGTH)
    x = maker.port("x", DType.F32, (batch, BATCH), (length, LENGTH), WIDTH)
    maker.sources += [AxisSource(b, x, 0), AxisSource(n, x, 1)]
    relu = maker.node("relu", x)
    total = maker.node("reduce_sum", maker.filled(x, 1, length), axes=(1,), keepdims=False)
    return maker.sized(
        {relu: ((batch, BATCH), (length, LENGTH), WIDTH), total: ((batch, BATCH), WIDTH)}
    )


def part_graph(low: int, high: int) -> Graph:
    """Of x: f32[2, length, 5] the relu, its rows f32[2*length, 5], and the sums over length.

    The length is from low to high, or the number that both are.
    """
    maker = SizedMaker()
    if low == high:
        x = maker.input(2, low, WIDTH)
        relu = maker.node("relu", x)
        rows = maker.node("reshape", relu, shape=(2 * low, WIDTH))
        total = maker.node("reduce_sum", x, axes=(1,), keepdims=False)
        return named(maker.graph(relu, rows, total), {x: "x", relu: "y", rows: "rows", total: "z"})
    (n, length) = symbol("length", low, high)
    x = maker.port("x", DType.F32, 2, (length, high), WIDTH)
    maker.sources.append(AxisSource(n, x, 1))
    relu = maker.node("relu", x)
    rows = maker.node("reshape", relu, shape=(2 * high, WIDTH))
    total = maker.node("reduce_sum", maker.filled(x, 1, length), axes=(1,), keepdims=False)
    flat = 2 * length
    made = maker.sized(
        {relu: (2, (length, high), WIDTH), rows: ((flat, 2 * high), WIDTH), total: (2, WIDTH)},
        verified=False,
    )
    first, second, third = made.signature.outputs
    apart = replace(second, padded=(((2, 2), (length, high)), ((WIDTH, WIDTH),)))
    signature = replace(made.signature, outputs=(first, apart, third))
    return renamed(replace(made, dynamic=signature), {relu: "y", rows: "rows", total: "z"})


def squeezed_model() -> ModelProto:
    """Of x: f32[b, 3] the absolute values y, those z of the columns that `keep` says, both without
    the axis of a batch of 1, and the sums of rows."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[b, 3] x, bool[3] keep) => (float[p] y, float[p] z, float[b] sums)
        <int64[1] first = {0}, int64[1] last = {1}, int64[1] one = {1}> {
            batch = Shape <start = 0, end = 1> (x)
            is_one = Equal (batch, one)
            kept = Compress <axis = 1> (x, keep)
            some = If (is_one) <then_branch = t () => (float[p] a) { a = Squeeze (kept, first) },
                                else_branch = e () => (float[p] b) { b = Identity (kept) }>
            all = Squeeze (x)
            y = Abs (all)
            z = Abs (some)
            sums = ReduceSum <keepdims = 0> (x, last)
        }"""
    )
    for output in model.graph.output[:2]:
        output.type.tensor_type.ClearField("shape")
    return model


def squeezed_programs() -> list[ExecutableSpec]:
    """Programs of `squeezed_model` for a batch of 1, and for 2 to 5."""
    specs = []
    for given, ends in ((1, (1, 1)), ("2..5", (2, 5))):
        graph = import_model_proto(squeezed_model(), {"b": [given]})
        specs.append(compile_model(graph, guards=[SizeGuard("b", "x", 0, *ends)]).spec)
    return specs


def named(graph: Graph, names: Mapping[str, str]) -> Graph:
    """A graph of known sizes with other names for values."""

    def name(old: str) -> str:
        return names.get(old, old)

    nodes = tuple(
        replace(node, inputs=tuple(map(name, node.inputs)), output=name(node.output))
        for node in graph.nodes
    )
    return replace(
        graph,
        nodes=nodes,
        inputs=tuple(map(name, graph.inputs)),
        outputs=tuple(map(name, graph.outputs)),
        types={name(old): type for old, type in graph.types.items()},
    )


def joined_graph() -> Graph:
    """Of x: f32[batch:1..4, length:0..7, 5] the relu of its rows: f32[batch*length, 5]."""
    maker = SizedMaker()
    (b, batch), (n, length) = symbol("batch", 1, BATCH), symbol("length", 0, LENGTH)
    x = maker.port("x", DType.F32, (batch, BATCH), (length, LENGTH), WIDTH)
    maker.sources += [AxisSource(b, x, 0), AxisSource(n, x, 1)]
    rows = maker.node("relu", maker.node("reshape", x, shape=(BATCH * LENGTH, WIDTH)))
    flat = batch * length
    made = maker.sized({rows: ((flat, BATCH * LENGTH), WIDTH)}, verified=False)
    apart = (((batch, BATCH), (length, LENGTH)), ((WIDTH, WIDTH),))
    (output,) = made.signature.outputs
    graph = replace(made, dynamic=replace(made.signature, outputs=(replace(output, padded=apart),)))
    verify_graph(graph)
    return graph


def taken_graph(most: int = 6) -> Graph:
    """Of x: f32[most] the sum and the relu of the first `count`, which an argument's element says.

    It must be twice the size `half`, its other element halved: 9 // 4.
    """
    maker = SizedMaker()
    (c, count) = symbol("count", 0, most)
    x = maker.port("x", DType.F32, most)
    given = maker.port("count", DType.I64, 2)
    maker.sources.append(ValueSource(c, given, 1))
    total = maker.node("reduce_sum", maker.filled(x, 0, count), axes=(0,), keepdims=False)
    relu = maker.node("relu", x)
    even = Equality(divide(count, 2), divide(count + 1, 2), "they are halves")
    return maker.sized({total: (), relu: ((count, most),)}, (even,))


def counted_graph(most: int = 7) -> Graph:
    """Of x: f32[most + 1] twice, one below the other, the first `found` elements.

    The graph says how many: as many as n says, which must not be negative.
    """
    maker = SizedMaker()
    (f, found) = symbol("found", 0, most)
    x = maker.port("x", DType.F32, most + 1)
    n = maker.port("n", DType.I64, 1)
    head = maker.node("slice", x, starts=(0,), steps=(1,), shape=(most,))
    twice = maker.node("expand", maker.node("relu", head), shape=(2, most))
    zero = maker.constant(np.zeros(1, np.int64))
    count = maker.node("add", n, zero)
    wrong = maker.node("cast", maker.node("less", n, zero), to="i64")
    maker.sources.append(ResultSource(f, count, 0))
    made = maker.sized({twice: (2, (found, most))}, more=(count, wrong))
    check = Check(wrong, "n", "it must not be negative")
    return replace(made, dynamic=replace(made.signature, checks=(check,)))


def cache_graph() -> Graph:
    """present = past and behind it new, and the sum of all: f32[2, past + 1, 4]."""
    maker = SizedMaker()
    (p, past) = symbol("past", 0, 30)
    before = maker.port("past", DType.F32, 2, (past, 31), 4)
    new = maker.port("new", DType.F32, 2, 1, 4)
    maker.sources.append(AxisSource(p, before, 1))
    places = maker.constant(np.arange(31).reshape(31, 1))
    limit = maker.size(past)
    present = maker.node("where", maker.node("less", places, limit), before, new)
    total = maker.node("reduce_sum", maker.filled(present, 1, past + 1), axes=(1,), keepdims=False)
    made = maker.sized({present: (2, (past + 1, 31), 4), total: (2, 4)})
    return renamed(made, {present: "present", total: "total"})


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for outputs."""
    signature = graph.signature

    def name(old: str) -> str:
        return names.get(old, old)

    nodes = tuple(
        replace(node, inputs=tuple(map(name, node.inputs)), output=name(node.output))
        for node in graph.nodes
    )
    outputs = tuple(replace(port, name=name(port.name)) for port in signature.outputs)
    return replace(
        graph,
        nodes=nodes,
        outputs=tuple(map(name, graph.outputs)),
        types={name(old): type for old, type in graph.types.items()},
        dynamic=replace(signature, outputs=outputs),
    )
