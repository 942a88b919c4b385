"""GraphBuilder: collects typed nodes and constants while a model is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from weakref import WeakValueDictionary

import numpy as np

from compiler.errors import ShapeError
from compiler.graph.ir import Graph
from compiler.limits import Allowance
from compiler.operators.registry import infer_type
from compiler.types.dtypes import DType
from compiler.types.node import Node
from compiler.types.tensor_type import Array, Attribute, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the model being imported; `array` holds its contents when they are constant.

    A constant becomes part of the graph only when a node reads it, so constants that shape
    computations use up (which may have zero extents) leave no trace.
    """

    name: str
    type: TensorType
    array: Array | None = None

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)


class GraphBuilder:
    """Nodes in the order of emission; every value has a unique name and an inferred type.

    Whatever is computed at import counts with `allowance`, before memory is asked for.
    """

    def __init__(self, name: str, allowance: Allowance) -> None:
        self.name = name
        self.allowance = allowance
        self.source = ""  # the ONNX node being converted
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, Array] = {}
        self._produced: set[str] = set()
        self._names: dict[str, str] = {}  # value name -> the model's name of it
        self._count = 0
        self._memory: WeakValueDictionary[int, Array] = WeakValueDictionary()
        self._memory_bytes = 0

    def input(self, name: str, type: TensorType) -> Value:
        """Declare a graph input."""
        value = Value(name, type)
        self._inputs.append(value)
        self._types[name] = type
        return value

    def constant(self, array: Array, dtype: DType | None = None) -> Value:
        """A constant value; NumPy dtype as given, or converted to `dtype`."""
        self.check_array(np.shape(array), (array.dtype if dtype is None else dtype.numpy).itemsize)
        contiguous = np.ascontiguousarray(array, dtype=None if dtype is None else dtype.numpy)
        self._count_memory(contiguous)
        contiguous = contiguous.reshape(np.shape(array))
        if contiguous.flags.writeable:
            contiguous = contiguous.view()
            contiguous.flags.writeable = False
        type = TensorType(DType.from_numpy(contiguous.dtype), contiguous.shape)
        return Value(self._fresh("constant"), type, contiguous)

    def _count_memory(self, array: Array) -> None:
        """Count the memory that the array, or what it is a view of, has of its own."""
        while isinstance(array.base, np.ndarray):
            array = array.base
        if self._memory.get(id(array)) is not array:
            self._memory[id(array)] = array
            self._memory_bytes += array.nbytes
            what = f"with node {self.source!r}, the constants of the model"
            self.allowance.check_bytes(what, self._memory_bytes)

    def scalar(self, value: int | float | bool, dtype: DType) -> Value:
        """A constant of shape ()."""
        return self.constant(np.asarray(value, dtype.numpy))

    def integers(self, values: Sequence[int]) -> Value:
        """A constant i64 vector."""
        return self.constant(np.asarray(values, np.int64).reshape(len(values)))

    def check_array(self, shape: Sequence[int], element_bytes: int) -> None:
        """Raise LimitError if a value of the node being converted may not become so large."""
        self.allowance.check_array(f"a value of node {self.source!r}", shape, element_bytes)

    def name_value(self, value: Value, name: str) -> None:
        """Remember the model's name of a value; the first one that it gets is kept."""
        self._names.setdefault(value.name, name)

    def emit(self, operator: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        """Append a node and return its output; trailing absent inputs are dropped.

        Raises ShapeError or UnsupportedOperatorError when the operator's type rule refuses.
        """
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        node = Node(
            operator,
            tuple("" if value is None else value.name for value in inputs),
            self._fresh(operator),
            MappingProxyType(attributes),
            self.source,
        )
        type = infer_type(node, [None if value is None else value.type for value in inputs])
        self.check_array(type.shape, type.dtype.bytes)
        self.allowance.check_nodes("the model", len(self._nodes))
        for value in inputs:
            if value is not None:
                self._use(value)
        self._nodes.append(node)
        self._types[node.output] = type
        self._produced.add(node.output)
        return Value(node.output, type)

    def cast(self, value: Value, dtype: DType) -> Value:
        """The value in an element type."""
        return value if value.dtype is dtype else self.emit("cast", value, to=str(dtype))

    def reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The value under another shape; constants stay constants."""
        if shape == value.shape:
            return value
        if value.array is not None and math.prod(shape) == value.array.size:
            return self.constant(value.array.reshape(shape))
        return self.emit("reshape", value, shape=shape)

    def transpose(self, value: Value, perm: tuple[int, ...]) -> Value:
        """The value with its axes in another order."""
        in_order = perm == tuple(range(value.rank))
        return value if in_order else self.emit("transpose", value, perm=perm)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Values one after the other along an axis."""
        return values[0] if len(values) == 1 else self.emit("concat", *values, axis=axis)

    def part(self, value: Value, axis: int, start: int, size: int) -> Value:
        """`size` positions of an axis from `start` on."""
        if size == value.shape[axis]:
            return value
        shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
        starts = tuple(start if other == axis else 0 for other in range(value.rank))
        return self.emit("slice", value, starts=starts, steps=(1,) * value.rank, shape=shape)

    def pick(self, value: Value, axis: int, position: int) -> Value:
        """One position of an axis, which goes away."""
        part = self.part(value, axis, position, 1)
        return self.reshape(part, (*part.shape[:axis], *part.shape[axis + 1 :]))

    def fold(self, operator: str, values: Sequence[Value]) -> Value:
        """The values joined pairwise from the left."""
        return reduce(lambda left, right: self.emit(operator, left, right), values)

    def _use(self, value: Value) -> None:
        if value.array is None or value.name in self._constants:
            return
        if 0 in value.shape:
            raise ShapeError(f"{self.source}: an operand of shape {list(value.shape)} is empty")
        self._constants[value.name] = value.array
        self._types[value.name] = value.type

    def _fresh(self, hint: str) -> str:
        self._count += 1
        return f"%{hint}_{self._count}"

    def finish(self, outputs: Sequence[tuple[str, Value]]) -> Graph:
        """The graph with these output names and values; values get the model's names.

        Raises ShapeError when an output has no elements.
        """
        taken = {value.name for value in self._inputs}
        renamed: dict[str, str] = {}
        for name, value in outputs:
            self.source = f"output {name!r}"
            self._require_nonempty(name, value)
            owned = value.name in self._produced or value.array is not None
            if value.name == name and name in taken:
                continue
            if not owned or value.name in renamed:
                value = self.emit("identity", value)
            self._use(value)
            renamed[value.name] = name
            taken.add(name)
        for internal in self._types:
            if internal in renamed or internal in taken:
                continue
            wanted = self._names.get(internal, "")
            if not wanted or wanted in taken:
                wanted = internal.removeprefix("%")
                while wanted in taken:
                    wanted += "_"
            renamed[internal] = wanted
            taken.add(wanted)
        return self._renamed(tuple(name for name, _ in outputs), renamed)

    def _require_nonempty(self, name: str, value: Value) -> None:
        if 0 in value.shape:
            raise ShapeError(f"output {name!r} of shape {list(value.shape)} is empty")

    def _renamed(self, outputs: tuple[str, ...], renamed: dict[str, str]) -> Graph:
        nodes = tuple(
            Node(
                node.operator,
                tuple(renamed.get(name, name) for name in node.inputs),
                renamed[node.output],
                node.attributes,
                node.source,
            )
            for node in self._nodes
        )
        return Graph(
            self.name,
            tuple(value.name for value in self._inputs),
            outputs,
            nodes,
            MappingProxyType({renamed.get(n, n): type for n, type in self._types.items()}),
            MappingProxyType({renamed.get(n, n): array for n, array in self._constants.items()}),
        )
