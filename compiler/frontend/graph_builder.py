"""GraphBuilder: collects typed nodes and constants while a model is imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from functools import reduce
from types import MappingProxyType
from weakref import WeakValueDictionary

import numpy as np

from compiler.errors import ShapeError
from compiler.frontend.padded_values import PaddedValues
from compiler.frontend.run_time_sizes import MOST_SIZES, RunTimeSizes, symbols_text
from compiler.frontend.value import Sizes, Value
from compiler.graph.ir import Graph
from compiler.limits import Allowance
from compiler.operators.evaluate_node import evaluate_node
from compiler.operators.registry import infer_type
from compiler.types.dims import Dims, extent_of, is_whole
from compiler.types.dtypes import DType
from compiler.types.node import Node
from compiler.types.signature import SIZES, Check, ResultSource, Signature
from compiler.types.sizes import Atom, Dimension, Size, Symbol, known, symbols_of
from compiler.types.tensor_type import Array, Attribute, TensorType

__all__ = ["GraphBuilder", "Sizes", "Value"]


class GraphBuilder:
    """Nodes in the order of emission; every value has a unique name and an inferred type.

    Whatever is computed at import counts with `allowance`, before memory is asked for.
    """

    def __init__(self, name: str, allowance: Allowance) -> None:
        self.name = name
        self.allowance = allowance
        self.source = ""  # the ONNX node being converted
        self.by_onnxruntime = False  # its optimiser may have written the model
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, Array] = {}
        self._produced: set[str] = set()
        self._viewed: dict[str, Value] = {}  # by a view's name
        self._again: dict[str, Callable[[tuple[int, ...]], Value | None]] = {}
        self._names: dict[str, str] = {}  # value name -> the model's name of it
        self._checks: list[tuple[Check, Value]] = []
        self._count = 0
        self._memory: WeakValueDictionary[int, Array] = WeakValueDictionary()
        self._memory_bytes = 0
        self.run_time = RunTimeSizes()
        self.is_padded = False  # whether any value is, or is computed of sizes
        self.padded = PaddedValues(self)
        self._computed: dict[Symbol, Value] = {}
        self._sizes = Value(SIZES, TensorType(DType.I64, (MOST_SIZES,)))

    def input(self, name: str, type: TensorType, dims: Dims | None = None) -> Value:
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
        return self.with_dims(self.constant(np.empty(type.shape, type.dtype.numpy)), dims)

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
        self.check_array(type.shape, type.dtype.bytes)
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

    # --- sizes that are known at run time -------------------------------------------------------

    def with_dims(self, value: Value, dims: Dims | None) -> Value:
        """The value of which only so much of each axis is there."""
        if dims is None or all(is_whole(axis) for axis in dims):
            return value if value.padded is None else replace(value, padded=None)
        if tuple(map(extent_of, dims)) != value.shape:
            raise ValueError(f"{self.source}: axes {dims} are none of {value.type}")
        self.is_padded = True
        return replace(value, padded=dims)

    def computed_symbol(self, symbol: Symbol, count: Value, *, output: bool = True) -> None:
        """A symbol that the graph computes: its value is the i64 scalar `count`.

        It is known after the run where it stands in outputs' shapes, for which it is an `output`.
        """
        self._computed[symbol] = count
        if output:
            self.run_time.declare(ResultSource(symbol, f"%size:{symbol.name}", 0))

    def unused_symbol(self, hint: str) -> str:
        """A name like `hint` that no computed symbol has."""
        taken = {symbol.name for symbol in self._computed}
        name, count = hint, 1
        while name in taken:
            count += 1
            name = f"{hint}_{count}"
        return name

    def size(self, size: Dimension, dtype: DType = DType.I64) -> Value:
        """A size as a scalar that nodes can read."""
        if isinstance(size, int):
            return self.scalar(size, dtype)
        vector, number = self.vector_with(size)
        return self.cast(self.reshape(self._slice_of(vector, number, 1), ()), dtype)

    def size_vector(self, sizes: Sequence[Dimension], dtype: DType = DType.I64) -> Value:
        """Sizes as a vector that nodes can read."""
        numbers = known(sizes)
        if numbers is not None:
            return self.cast(self.integers(numbers), dtype)
        if any(symbol in self._computed for size in sizes for symbol in symbols_of(size)):
            return self.concat([self.reshape(self.size(size, dtype), (1,)) for size in sizes], 0)
        number = self.run_time.block(sizes)
        return self.cast(self._slice_of(self._sizes, number, len(sizes)), dtype)

    def integers_of(self, sizes: Sizes, dtype: DType = DType.I64) -> Value:
        """Integers that are computed of sizes; constants where they depend on no symbol."""
        numbers = known(sizes.reshape(-1).tolist())
        if numbers is not None:
            return self.constant(np.array(numbers, dtype.numpy).reshape(sizes.shape))
        self.is_padded = True
        type = TensorType(dtype, sizes.shape)
        return Value(self._fresh("sizes"), type, sizes=sizes)

    def readable(self, value: Value) -> Value:
        """The value as nodes can read it: integers of sizes are taken from the sizes' vector."""
        if value.sizes is None:
            return value
        flat = value.sizes.reshape(-1).tolist()
        return self.reshape(self.size_vector(flat, value.dtype), value.shape)

    def _slice_of(self, vector: Value, first: int, count: int) -> Value:
        if vector.shape == (count,):
            return vector
        return self.append(
            "slice", (vector,), {"starts": (first,), "steps": (1,), "shape": (count,)}
        )

    def vector_with(self, size: Dimension) -> tuple[Value, int]:
        """An i64 vector and the place in it where it has the size."""
        if not any(symbol in self._computed for symbol in symbols_of(size)):
            return self._sizes, self.run_time.number(size)
        return self.reshape(self._computed_size(size), (1,)), 0

    def _computed_size(self, size: Dimension) -> Value:
        """A size that depends on what the graph computes, as an i64 scalar."""
        if not isinstance(size, Size):
            return self.scalar(size, DType.I64)
        terms: list[Value] = []
        for atoms, factor in size.terms:
            factors = [self._atom(atom) for atom in atoms]
            if factor != 1 or not factors:
                factors.append(self.scalar(factor, DType.I64))
            terms.append(self.fold("mul", factors))
        return self.fold("add", terms)

    def _atom(self, atom: Atom) -> Value:
        if isinstance(atom, Symbol):
            known_symbol = self._computed.get(atom)
            return self.size(Symbol.of(*astuple(atom))) if known_symbol is None else known_symbol
        operator = {"//": "div", "%": "mod"}.get(atom.name, atom.name)  # divisors are positive
        left, right = (self._computed_size(operand) for operand in atom.operands)
        if operator != "div":
            return self.emit(operator, left, right)
        # Rounded down, where division of integers rounds towards 0.
        return self.emit("div", self.emit("sub", left, self.emit("mod", left, right)), right)

    def refusal(self, reason: str, values: Sequence[Value | None], hint: str = "") -> ShapeError:
        """The error for what cannot be done with values whose sizes are known at run time only."""
        names = symbols_text([value.dims for value in values if value is not None])
        return ShapeError(
            f"node {self.source!r}: {reason} (known at run time only: {names})",
            hint=hint or f"fix {names} with --shape",
        )

    def cast(self, value: Value, dtype: DType) -> Value:
        """The value in an element type."""
        return value if value.dtype is dtype else self.emit("cast", value, to=str(dtype))

    def reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The value under another shape; constants stay constants."""
        if shape == value.shape:
            return value
        if value.array is not None and math.prod(shape) == value.array.size:
            return self.constant(value.array.reshape(shape))
        if value.sizes is not None and math.prod(shape) == value.sizes.size:
            return self.integers_of(value.sizes.reshape(shape), value.dtype)
        again = self._again.get(value.name)
        made = again(shape) if again is not None and value.padded is None else None
        if made is not None:
            return made
        result = self.emit("reshape", value, shape=shape)
        if value.padded is None:
            self._viewed[result.name] = value
        return result

    def viewed(self, value: Value) -> Value | None:
        """What a value is under another shape; None of one that is padded, or no view."""
        return None if value.padded is not None else self._viewed.get(value.name)

    def when_viewed(self, value: Value, make: Callable[[tuple[int, ...]], Value | None]) -> None:
        """Have the value under another shape be what `make` gives for that, unless it is None."""
        self._again[value.name] = make

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

    def require(self, wrong: Value, operand: str, reason: str) -> None:
        """Refuse runs in which an element of `wrong`, of bools, is true.

        `operand` and `reason` are those of `compiler.types.signature.Check`. Raises ShapeError for
        a constant that is wrong already.
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

    def only_where(self, condition: Value, taken: bool, first: int) -> None:
        """Conditions from number `first` on matter only where the bool is `taken`."""
        for number in range(first, len(self._checks)):
            check, flags = self._checks[number]
            fine = self.constant(np.zeros(flags.shape, np.int64))
            sides = (flags, fine) if taken else (fine, flags)
            self._checks[number] = (check, self.emit("choose", condition, *sides))

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

    def fresh_number(self) -> int:
        """A number that no other value of the graph has."""
        self._count += 1
        return self._count

    def _fresh(self, hint: str) -> str:
        self._count += 1
        return f"%{hint}_{self._count}"

    def finish(self, outputs: Sequence[tuple[str, Value]]) -> Graph:
        """The graph with these output names and values; values get the model's names.

        Where sizes are known at run time only the graph has a signature and, if its nodes read any,
        the input `SIZES`.
        """
        taken = {value.name for value in self._inputs}
        renamed: dict[str, str] = {}
        outputs = [(name, self.readable(value)) for name, value in outputs]
        ports = [(name, value.type, value.dims) for name, value in outputs]
        self._require_late_equalities()
        outputs += self._result_sizes()
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
        graph = self._renamed(tuple(name for name, _ in outputs), renamed)
        return graph if signature is None else replace(graph, signature=signature)

    def _require_late_equalities(self) -> None:
        """What must be equal of sizes that the graph computes is checked by the graph."""
        for item in self.run_time.late_equalities():
            equal = self.emit("equal", *map(self._computed_size, (item.left, item.right)))
            reason = f"which must be equal, as {item.reason} asks"
            self.require(self.emit("not", equal), f"{item.left} and {item.right}", reason)

    def _result_sizes(self) -> list[tuple[str, Value]]:
        """The outputs that sizes are read from after the run."""
        return [
            (source.output, self.reshape(self._computed[source.symbol], (1,)))
            for source in self.run_time.sources
            if isinstance(source, ResultSource)
        ]

    def _signature(self, outputs: Sequence[tuple[str, TensorType, Dims]]) -> Signature | None:
        """How the graph is called; declares its input `SIZES`."""
        ports = [(value.name, value.type, value.dims) for value in self._inputs]
        checks = tuple(check for check, _ in self._checks)
        signature = self.run_time.signature(ports, outputs, checks)
        if signature is not None and signature.sizes:
            type = TensorType(DType.I64, (len(signature.sizes),))
            self._inputs.append(Value(SIZES, type))
            self._types[SIZES] = type
        return signature

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
