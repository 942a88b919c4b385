"""GraphBuilder: collects typed nodes and constants while a model is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.node_emitter import NodeEmitter
from tunefarm.compiler.frontend.padded_values import PaddedValues
from tunefarm.compiler.frontend.value import Sizes, Value
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.registry import infer_type
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.large_arrays import kept
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import PaddedShape, is_unpadded
from tunefarm.compiler.types.signature import SIZES, Check, Equality, ResultSource, Signature
from tunefarm.compiler.types.sizes import Size
from tunefarm.compiler.types.structure import StringTable, WordTable
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType

__all__ = ["GraphBuilder", "Sizes", "Value"]


class GraphBuilder(NodeEmitter):
    """Nodes in the order of emission; every value has a unique name and an inferred type.

    Whatever is computed at import counts with `allowance`, before memory is asked for.
    """

    def __init__(self, name: str, allowance: ResourceBudget) -> None:
        super().__init__()
        self.name = name
        self.allowance = allowance
        self.by_onnxruntime = False  # its optimiser may have written the model
        self.bounds_lists = False  # what computed shapes hold has bounds where nothing declares it
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, Array] = {}
        self._produced: set[str] = set()
        self._names: dict[str, str] = {}  # value name -> the model's name of it
        self._checks: list[tuple[Check, Value]] = []
        self.words = StringTable(WordTable())
        self._count = 0
        self._memory: WeakValueDictionary[int, Array] = WeakValueDictionary()
        self._memory_bytes = 0
        self.padded = PaddedValues(self)

    def input(self, name: str, type: TensorType, dims: PaddedShape | None = None) -> Value:
        """Declare a graph input; `dims` are its axes where some are not known before run time.

        One without elements is passed, and read by nobody.
        """
        value = self.with_dims(Value(name, type), dims)
        if value.padded is not None:
            self.run_time.declare_axes(name, value.padded)
        self._inputs.append(value)
        self._types[name] = type
        if type.size:
            return value
        empty = replace(self.constant(np.empty(type.shape, type.dtype.numpy)), type=type)
        return self.with_dims(empty, dims)

    @property
    def text_inputs(self) -> list[str]:
        """The names of inputs that are strings."""
        return [value.name for value in self._inputs if value.dtype is DType.STRING]

    def constant(self, array: Array, dtype: DType | None = None) -> Value:
        """A constant value; NumPy dtype as given, or converted to `dtype`. Words get numbers."""
        if array.dtype.kind in "USO":
            numbers = self.constant(self.words.numbers(array))
            return replace(numbers, type=TensorType(DType.STRING, numbers.shape))
        self.check_array(np.shape(array), (array.dtype if dtype is None else dtype.numpy).itemsize)
        contiguous = np.ascontiguousarray(array, dtype=None if dtype is None else dtype.numpy)
        self._count_memory(contiguous)
        contiguous = kept(contiguous.reshape(np.shape(array)))
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

    def check_array(self, shape: Sequence[int], element_bytes: int) -> None:
        """Raise LimitError if a value of the node being converted may not become so large."""
        self.allowance.check_array(f"a value of node {self.source!r}", shape, element_bytes)

    def name_value(self, value: Value, name: str) -> None:
        """Remember the model's name of a value; the first one that it gets is kept."""
        self._names.setdefault(value.name, name)

    def emit(self, operator: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        """Append a node and return its output; trailing absent inputs are dropped.

        No node reads or makes a tensor without elements: what it would make is known.
        Raises ShapeError or UnsupportedOperatorError when the operator's type rule refuses.
        """
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        if self.is_padded:
            return self.padded.emit(operator, inputs, attributes)
        return self.append(operator, inputs, attributes)

    def append(
        self, operator: str, inputs: Sequence[Value | None], attributes: dict[str, Attribute]
    ) -> Value:
        """`emit` on operands as they are, whatever their padding holds."""
        node = Node(
            operator,
            tuple("" if value is None else value.name for value in inputs),
            self._fresh(operator),
            MappingProxyType(attributes),
            self.source,
        )
        type = infer_type(node, [None if value is None else value.type for value in inputs])
        # Whether it is ever in memory, and has to fit, is known when there are kernels.
        self.allowance.check_rank(f"a value of node {self.source!r}", type.shape)
        if not type.size:
            return self.constant(np.empty(type.shape, type.dtype.numpy))
        if any(value is not None and not value.type.size for value in inputs):
            return self._of_empty(node, inputs)
        self.allowance.check_nodes("the model", len(self._nodes))
        for value in inputs:
            if value is not None:
                self._use(value)
        self._nodes.append(node)
        self._types[node.output] = type
        self._produced.add(node.output)
        return Value(node.output, type)

    def _of_empty(self, node: Node, inputs: Sequence[Value | None]) -> Value:
        """What a node makes of operands some of which have no elements.

        A join is one of the others; all else that has elements is made of none: a sum of nothing.
        """
        if node.operator == "concat":
            filled = [value for value in inputs if value is not None and value.type.size]
            return self.append(node.operator, filled, dict(node.attributes))
        arrays = tuple(None if value is None else value.array for value in inputs)
        unknown = [v for v, array in zip(inputs, arrays, strict=True) if v and array is None]
        if unknown:
            raise ShapeError(f"{self.source}: {node.operator} of an operand without elements")
        return self.constant(evaluate_node(node, arrays))

    def with_dims(self, value: Value, dims: PaddedShape | None) -> Value:
        """The value of which only so much of each axis is there."""
        if dims is None or all(map(is_unpadded, dims)):
            return value if value.padded is None else replace(value, type=value.type.stored)
        type = TensorType.of(value.dtype, dims)
        if type != value.type:
            raise ValueError(f"{self.source}: axes {dims} are none of {value.type}")
        self.is_padded = True
        self.run_time.remember(value.name, dims)
        self.padded.holds_anything(value, dims)
        return replace(value, type=type)

    def require(self, wrong: Value, operand: str, reason: str) -> None:
        """Refuse runs in which an element of `wrong`, of bools, is true.

        `operand` and `reason` are those of `tunefarm.compiler.types.signature.Check`. Raises
        ShapeError for a constant that is wrong already.
        """
        if wrong.array is not None:
            if wrong.array.any():
                raise ShapeError(f"{self.source}: {operand!r} does not fit: {reason}")
            return
        flags = self.cast(self.reshape(wrong, (wrong.type.size,)), DType.I64)
        self._checks.append((Check(f"%check:{len(self._checks)}", operand, reason), flags))

    @property
    def check_count(self) -> int:
        """How many conditions runs must meet so far."""
        return len(self._checks)

    def change_check(self, number: int, change: Callable[[Value], Value]) -> None:
        """Have a condition that runs must meet be what `change` makes of its flags, an i64 vector.

        It is met where all of them are 0.
        """
        check, flags = self._checks[number]
        self._checks[number] = (check, change(flags))

    def only_where(self, condition: Value, taken: bool, first: int) -> None:
        """Conditions from number `first` on matter only where the bool is `taken`."""

        def chosen(flags: Value) -> Value:
            fine = self.constant(np.zeros(flags.shape, np.int64))
            sides = (flags, fine) if taken else (fine, flags)
            return self.emit("choose", condition, *sides)

        for number in range(first, len(self._checks)):
            self.change_check(number, chosen)

    @property
    def node_count(self) -> int:
        """How many nodes there are so far."""
        return len(self._nodes)

    def is_known_from(self, first: int) -> bool:
        """Whether nodes from number `first` on read constants and each other only."""
        made = {node.output for node in self._nodes[first:]}
        read = {name for node in self._nodes[first:] for name in node.inputs if name}
        return all(name in made or name in self._constants for name in read)

    def is_input(self, value: Value) -> bool:
        """Whether a value is an input of the model, as it is given."""
        return any(value.name == one.name for one in self._inputs)

    def origin(self, value: Value) -> str:
        """The model's name of a value; of the input that it is computed from, if that is one."""
        producers = {node.output: node for node in self._nodes}
        seen, left, inputs = {value.name}, [value.name], set[str]()
        while left:
            name = left.pop()
            if name in producers:
                fresh = {other for other in producers[name].inputs if other} - seen
                seen |= fresh
                left += fresh
            elif name not in self._constants:
                inputs.add(name)
        return inputs.pop() if len(inputs) == 1 else self._names.get(value.name, value.name)

    def _use(self, value: Value) -> None:
        if value.array is None or value.name in self._constants:
            return
        self._constants[value.name] = value.array
        self._types[value.name] = value.type

    def _node_of(self, value: Value) -> Node | None:
        """The node that makes a value, the last ones asked first."""
        return next((node for node in reversed(self._nodes) if node.output == value.name), None)

    def is_cast_from(self, dtype: DType, value: Value) -> bool:
        """Whether a value was cast from one of the type."""
        node = self._node_of(value)
        if node is None or node.operator != "cast":
            return False
        return self._types[node.inputs[0]].dtype is dtype

    def added(self, before: Value, after: Value) -> int | None:
        """The constant integer that a node adds to a value to make another one; None if none
        does."""
        node = self._node_of(after)
        if node is None or node.operator != "add" or before.name not in node.inputs:
            return None
        other = node.inputs[node.inputs[0] == before.name]
        array = self._constants.get(other)
        return None if array is None or array.size != 1 else int(array.reshape(-1)[0])

    def fresh_number(self) -> int:
        """A number that no other value of the graph has."""
        self._count += 1
        return self._count

    def _fresh(self, hint: str) -> str:
        self._count += 1
        return f"%{hint}_{self._count}"

    def finish(self, outputs: Sequence[tuple[str, Value]]) -> Graph:
        """The graph with these output names and values; values get the model's names.

        Where sizes are dynamic the graph has a signature and, if its nodes read any, the input
        `SIZES`.
        """
        taken = {value.name for value in self._inputs}
        renamed: dict[str, str] = {}
        outputs = [(name, self.readable(value)) for name, value in outputs]
        ports = [(name, _stored(value.type), value.dims) for name, value in outputs]
        self.check_equalities(self.run_time.late_equalities())
        first = len(self._nodes)
        sizes = self._computed_sizes([dims for _, _, dims in ports])
        outputs += self._result_sizes()
        outputs += [(name, value) for name, (_, value) in sizes.items()]
        self._nodes = _moved_up(self._nodes, first)
        outputs += [(check.output, flags) for check, flags in self._checks]
        for name, value in outputs:
            self.source = f"output {name!r}"
            owned = value.name in self._produced or value.array is not None
            if value.name == name and name in taken:
                continue
            if not owned or value.name in renamed:
                value = self.emit("identity", value)
            self._use(value)
            renamed[value.name] = name
            taken.add(name)
        unread, zeros = (
            self.padded.unread(self.run_time, self._types),
            self.padded.zeros(self.run_time, self._types),
        )
        signature = self._signature(ports)
        for internal in self._types:
            if internal in renamed or internal in taken or internal == SIZES:
                continue
            wanted = self._names.get(internal, "")
            if not wanted or wanted in taken:
                wanted = internal.removeprefix("%")
                while wanted in taken:
                    wanted += "_"
            renamed[internal] = wanted
            taken.add(wanted)
        padded = self.run_time.padded(signature)
        graph = self._renamed(tuple(name for name, _ in outputs), renamed, padded)
        if signature.is_fixed:
            return graph
        unread, zeros = (
            {renamed.get(name, name): dims for name, dims in known.items() if name in self._types}
            for known in (unread, zeros)
        )
        computed = {name: size for name, (size, _) in sizes.items()}
        return replace(
            graph,
            dynamic=signature,
            unread=unread,
            zeros=zeros,
            computed_sizes=computed,
        )

    def check_equalities(self, equalities: Iterable[Equality]) -> None:
        """Have the graph itself check what must be equal of sizes."""
        for item in equalities:
            equal = self.emit("equal", *map(self.computed_size, (item.left, item.right)))
            reason = f"{item.left} and {item.right} must be equal, as {item.reason} asks"
            self.require(self.emit("not", equal), SIZES, reason)

    def _result_sizes(self) -> list[tuple[str, Value]]:
        """The outputs that sizes are read from after the run."""
        return [
            (source.output, self.reshape(self.count_of(source.symbol), (1,)))
            for source in self.run_time.sources
            if isinstance(source, ResultSource)
        ]

    def _computed_sizes(self, ports: Iterable[PaddedShape]) -> dict[str, tuple[Size, Value]]:
        """The outputs, up to which kernels run, of sizes that symbols which are outputs make.

        They are computed anew: those that fills read may come late.
        """
        axes = (*self.padded.axes(), *(axis for dims in ports for axis in dims))
        late = [size for size in self.run_time.late_sizes(axes) if size.symbol is None]
        return {
            f"%computed:{number}": (size, self.reshape(self.computed_size(size), (1,)))
            for number, size in enumerate(late)
        }

    def _signature(self, outputs: Sequence[tuple[str, TensorType, PaddedShape]]) -> Signature:
        """How the graph is called; declares its input `SIZES`."""
        ports = [(value.name, _stored(value.type), value.dims) for value in self._inputs]
        checks = tuple(check for check, _ in self._checks)
        signature = self.run_time.signature(ports, outputs, checks)
        if signature.sizes:
            type = TensorType(DType.I64, (len(signature.sizes),))
            self._inputs.append(Value(SIZES, type))
            self._types[SIZES] = type
        return signature

    def _renamed(
        self,
        outputs: tuple[str, ...],
        renamed: Mapping[str, str],
        padded: Mapping[str, PaddedShape],
    ) -> Graph:
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
            MappingProxyType(
                {renamed.get(n, n): _stored(t, padded.get(n)) for n, t in self._types.items()}
            ),
            MappingProxyType({renamed.get(n, n): array for n, array in self._constants.items()}),
        )


def _moved_up(nodes: Sequence[Node], first: int) -> list[Node]:
    """The nodes, those from number `first` on as soon as their operands are there."""
    made = {node.output: number for number, node in enumerate(nodes[:first])}
    after: dict[int, list[Node]] = {}
    for node in nodes[first:]:
        place = max((made.get(name, -1) for name in node.inputs), default=-1)
        made[node.output] = place
        after.setdefault(place, []).append(node)
    moved = list(after.get(-1, ()))
    for number, node in enumerate(nodes[:first]):
        moved += [node, *after.get(number, ())]
    return moved


def _stored(type: TensorType, padded: PaddedShape | None = None) -> TensorType:
    """The type of a value in the graph, as much of which is there: words are numbers there."""
    dtype = DType.I64 if type.dtype is DType.STRING else type.dtype
    return TensorType(dtype, type.shape, padded)


_COLLECTIONS = (list, dict, set)


def checkpoint(graph: GraphBuilder) -> Callable[[], None]:
    """A function that makes the graph again what it is now; numbers of names are not used twice."""
    parts: tuple[object, ...] = (graph, graph.padded, graph.run_time)
    kept = [(part, _collections(part)) for part in parts]
    was_padded = graph.is_padded

    def restore() -> None:
        for part, collections in kept:
            for name, collection in collections.items():
                setattr(part, name, collection.copy())
        graph.is_padded = was_padded

    return restore


def _collections(part: object) -> dict[str, Any]:
    """Copies of the collections that an object keeps what it knows in."""
    return {
        name: value.copy() for name, value in vars(part).items() if isinstance(value, _COLLECTIONS)
    }
