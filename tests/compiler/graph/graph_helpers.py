"""Builds small graphs by hand and gives graphs and kernel programs their meaning in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tunefarm.compiler.graph.infer_types import node_type
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import frozen
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import JoinCall, KernelCall, KernelProgram, ViewCall
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType


class GraphMaker:
    """Collects inputs, constants and nodes; values are named by kind and number."""

    def __init__(self) -> None:
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Array] = {}
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self.rng = np.random.default_rng(0)

    def input(self, *shape: int, dtype: DType = DType.F32) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.types[name] = TensorType(dtype, shape)
        return name

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = frozen(array)
        self.types[name] = TensorType(DType.from_numpy(array.dtype), array.shape)
        return name

    def weights(self, *shape: int, scale: float = 0.5) -> str:
        values = self.rng.standard_normal(shape) * scale
        return self.constant(values.astype(np.float32))

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, dtype=np.float32))

    def node(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        output = f"{operator}_{len(self.nodes)}"
        node = Node(operator, inputs, output, MappingProxyType(attributes), f"onnx_{output}")
        self.types[output] = node_type(node, self.types)
        self.nodes.append(node)
        return output

    def graph(self, *outputs: str) -> Graph:
        graph = Graph(
            "test",
            tuple(self.inputs),
            outputs,
            tuple(self.nodes),
            self.types,
            self.constants,
        )
        verify_graph(graph)
        return graph


def conv(maker: GraphMaker, x: str, outputs: int, size: int = 3, **attributes: int | str) -> str:
    """A convolution with a bias that keeps the extents of its image."""
    channels = maker.types[x].shape[1] // int(attributes.get("groups", 1))
    weight = maker.weights(outputs, channels, size, size, scale=1 / (channels * size))
    pads = (size // 2,) * 4
    return maker.node("conv", x, weight, maker.weights(outputs), pads=pads, **attributes)


def two_convolutions() -> Graph:
    """conv_0, relu_1, conv_2, relu_3: large enough to lie in blocks."""
    maker = GraphMaker()
    y = maker.input(1, 32, 14, 14)
    for _ in range(2):
        y = maker.node("relu", conv(maker, y, 32))
    return maker.graph(y)


def operators(graph: Graph) -> list[str]:
    return [node.operator for node in graph.nodes]


def conversions(graph: Graph) -> list[str]:
    """What brings values from one layout to another, in order."""
    return [name for name in operators(graph) if name.endswith("_blocked")]


def random_inputs(graph: Graph, seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for name in graph.inputs:
        type = graph.types[name]
        if type.dtype.is_float:
            values[name] = rng.standard_normal(type.shape).astype(type.dtype.numpy)
        elif type.dtype is DType.BOOL:
            values[name] = rng.integers(0, 2, type.shape).astype(np.bool_)
        else:
            values[name] = rng.integers(0, 4, type.shape).astype(type.dtype.numpy)
    return values


def evaluate_graph(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs, node by node."""
    values: dict[str, Array] = {**graph.constants, **inputs}
    for node in graph.nodes:
        operands = tuple(values[name] if name else None for name in node.inputs)
        values[node.output] = np.asarray(evaluate_node(node, operands))
    return [values[name] for name in graph.outputs]


def evaluate_program(program: KernelProgram, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs, kernel by kernel."""
    values = values_of_program(program, inputs)
    return [values[name] for name in program.outputs]


def values_of_program(program: KernelProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every value of the program, kernel by kernel."""
    values: dict[str, Array] = {**program.constants, **inputs}
    for call in program.calls:
        if isinstance(call, KernelCall):
            arrays = [values[name] for name in call.inputs]
            names = [buffer.name for buffer in call.kernel.inputs]
            result = evaluate_kernel(call.kernel, dict(zip(names, arrays, strict=True)))
            values[call.output] = np.asarray(result)
        else:
            assert isinstance(call, ViewCall | JoinCall)
            values[call.output] = memory_of(call, program, values)
    return values


def memory_of(
    call: ViewCall | JoinCall, program: KernelProgram, values: Mapping[str, Array]
) -> Array:
    """What a view or join is, from the values before it."""
    type = program.types[call.output]
    names = call.inputs if isinstance(call, JoinCall) else (call.input,)
    elements = np.concatenate([values[name].reshape(-1) for name in names])
    offset = 0 if isinstance(call, JoinCall) else call.offset // type.dtype.bytes
    return elements[offset : offset + type.size].reshape(type.shape)


def assert_close(found: list[Array], expected: list[Any], tolerance: float = 1e-5) -> None:
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert left.shape == right.shape
        assert left.dtype == right.dtype
        scale = float(np.max(np.abs(right))) if right.dtype.kind == "f" else 0.0
        values: Any = left
        np.testing.assert_allclose(values, right, rtol=tolerance, atol=tolerance * scale)


def assert_same_meaning(before: Graph, after: Graph, tolerance: float = 1e-5) -> None:
    """Both graphs are valid, have the same interface, and give the same outputs."""
    verify_graph(after)
    assert after.inputs == before.inputs
    assert after.outputs == before.outputs
    assert [after.types[n] for n in after.outputs] == [before.types[n] for n in before.outputs]
    inputs = random_inputs(before)
    assert_close(evaluate_graph(after, inputs), evaluate_graph(before, inputs), tolerance)


def extracted(graph: Graph) -> KernelProgram:
    """The graph's kernels, checked against the graph."""
    program = extract_kernels(graph)
    inputs = random_inputs(graph)
    assert_close(evaluate_program(program, inputs), evaluate_graph(graph, inputs))
    return program


def kernel_names(program: KernelProgram) -> list[str]:
    return [call.kernel.name for call in program.calls if isinstance(call, KernelCall)]
