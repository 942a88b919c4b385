"""A case of the operator map: a small ONNX model around one operator, and its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

IR_VERSION = 10
AnyArray: TypeAlias = npt.NDArray[Any]


class CaseBuilder:
    """Collects the nodes, seeded weights and drawn inputs of one case."""

    def __init__(self, name: str) -> None:
        self._random = np.random.default_rng([*name.encode()])
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self.inputs: dict[str, AnyArray] = {}

    def input(self, *shape: int, low: float | None = None) -> str:
        """An input of normal floats; with `low` of floats between that and `low + 2`."""
        drawn = (
            self._random.standard_normal(shape)
            if low is None
            else low + 2.0 * self._random.random(shape)
        )
        return self._input(drawn.astype(np.float32))

    def indices(self, below: int, *shape: int) -> str:
        """An input of 64-bit integers from 0 to `below` - 1."""
        return self._input(self._random.integers(0, below, shape))

    def places(self, axis: int, shape: Sequence[int]) -> str:
        """An input of 64-bit integers of which no two are equal along an axis."""
        return self._input(self._random.permuted(np.indices(shape)[axis], axis=axis))

    def permutation(self, size: int) -> str:
        """An input of the integers below `size` in random order."""
        return self._input(self._random.permutation(size))

    def mask(self, *shape: int) -> str:
        """An input of random bools."""
        return self._input(self._random.integers(0, 2, shape).astype(np.bool_))

    def bytes(self, *shape: int) -> str:
        """An input of unsigned 8-bit integers."""
        return self._input(self._random.integers(0, 256, shape).astype(np.uint8))

    def _input(self, values: AnyArray) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = values
        return name

    def weight(self, *shape: int, fan_in: int | None = None) -> str:
        """A constant of normal floats that keeps the scale of what it is multiplied with."""
        terms = math.prod(shape[1:]) if fan_in is None else fan_in
        drawn = self._random.standard_normal(shape) / math.sqrt(max(1, terms))
        return self.constant(drawn.astype(np.float32))

    def constant(self, values: npt.ArrayLike) -> str:
        """A constant; floats are stored in 32 bits, integers in 64."""
        array = np.asarray(values)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        name = f"w{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; its only output."""
        return self.nodes(operator, 1, *inputs, **attributes)[0]

    def nodes(self, operator: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node of several outputs."""
        number = len(self._nodes)
        names = [f"v{number}_{output}" for output in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def conv(self, data: str, inputs: int, outputs: int, rank: int = 2) -> str:
        """A 1x1 convolution: what is beside it lies in blocks of channels."""
        filters = self.weight(outputs, inputs, *[1] * rank)
        return self.node("Conv", data, filters, self.weight(outputs, fan_in=100))

    def model(self, outputs: Sequence[str], opset: int) -> onnx.ModelProto:
        """The model; its outputs are those values."""
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in self.inputs.items()
        ]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self._nodes, "case", inputs, results, self._initializers)
        operators = [helper.make_opsetid("", opset)]
        if any(node.domain for node in self._nodes):
            operators.append(helper.make_opsetid("ai.onnx.ml", 3))
        model = helper.make_model(graph, opset_imports=operators, ir_version=IR_VERSION)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)


Write: TypeAlias = Callable[[CaseBuilder], str | Sequence[str]]
"""Adds a case's nodes; returns its outputs."""


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """One line of the map: `name` is its own, `write` adds its nodes and returns its outputs."""

    family: str
    name: str
    write: Write
    opset: int = 20

    def build(self) -> tuple[onnx.ModelProto, dict[str, AnyArray]]:
        """The model, and an array for each of its inputs."""
        builder = CaseBuilder(self.name)
        outputs = self.write(builder)
        names = [outputs] if isinstance(outputs, str) else outputs
        return builder.model(names, self.opset), builder.inputs


def one_node(
    family: str,
    name: str,
    operator: str,
    *shapes: Sequence[int],
    constants: Sequence[npt.ArrayLike] = (),
    low: float | None = None,
    **attributes: Any,
) -> OperatorCase:
    """One node of inputs of these shapes, and after them these constants.

    `low` is that of the last input, see `CaseBuilder.input`.
    """

    def write(net: CaseBuilder) -> str:
        inputs = [net.input(*shape) for shape in shapes[:-1]] + [net.input(*shapes[-1], low=low)]
        return net.node(operator, *inputs, *map(net.constant, constants), **attributes)

    return OperatorCase(family, name, write)


def shape_text(shape: Sequence[int]) -> str:
    """As in names of cases: 1x64x56x56."""
    return "x".join(map(str, shape))
