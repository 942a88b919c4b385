"""Graphs with run-time sizes made by hand, and what they must give."""

from __future__ import annotations

from compiler.graph.ir import Graph
from compiler.graph.verify import verify_graph
from compiler.types.dtypes import DType
from compiler.types.signature import (
    SIZES,
    AxisSource,
    Equality,
    Signature,
    SizedPort,
    Source,
)
from compiler.types.sizes import Dimension, Size, Symbol
from compiler.types.tensor_type import TensorType
from tests.compiler.graph.graph_helpers import GraphMaker


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
        if size not in self.sizes:
            self.sizes.append(size)
        # the type is known when all sizes are: long enough for what these tests ask for
        self.types[SIZES] = TensorType(DType.I64, (8,))
        number = self.sizes.index(size)
        return self.node("fill", value, SIZES, axis=axis, number=number, value=with_)

    def sized(
        self,
        outputs: dict[str, tuple[tuple[Dimension, int] | int, ...]],
        equalities: tuple[Equality, ...] = (),
        more: tuple[str, ...] = (),
    ) -> Graph:
        """The graph of these outputs, `more` of them are no ports."""
        self.sizes += [1] * (8 - len(self.sizes))
        ports = tuple(port(name, self.types[name].dtype, *axes) for name, axes in outputs.items())
        signature = Signature(
            tuple(self.ports), ports, tuple(self.sources), tuple(self.sizes), equalities
        )
        inputs = (*self.inputs, SIZES)
        self.types[SIZES] = TensorType(DType.I64, (8,))
        graph = Graph(
            "sized",
            inputs,
            (*outputs, *more),
            tuple(self.nodes),
            self.types,
            self.constants,
            signature,
        )
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
