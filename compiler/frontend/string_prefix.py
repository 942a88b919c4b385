"""Takes operators of strings off a graph's beginning, as steps that run on the host.

What computes with strings (StringNormalizer, Tokenizer and so on) is taken, with what moves strings
before it, and with what can be taken behind it: what a Tokenizer gives has no size that is known,
and what a TfIdfVectorizer makes of that has. Everything else is compiled, strings being numbers of
words there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import NodeProto, ValueInfoProto

from tunefarm.compiler.errors import ImportModelError, UnsupportedOperatorError
from tunefarm.compiler.frontend.declared_ports import declared_port
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.frontend.graph_builder import GraphBuilder
from tunefarm.compiler.frontend.import_step import name_of
from tunefarm.compiler.frontend.name_scope import NameScope
from tunefarm.compiler.frontend.onnx_node import decode_attributes
from tunefarm.compiler.frontend.read_model import canonical_domain, names_read
from tunefarm.compiler.frontend.value import Value
from tunefarm.compiler.strings.operators import (
    OPERATORS,
    Shape,
    StringOperator,
    StringOperatorError,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.sizes import Dimension, Symbol, bounds_of
from tunefarm.compiler.types.string_prefix import (
    StringAttribute,
    StringPort,
    StringPrefix,
    StringStep,
)
from tunefarm.compiler.types.tensor_type import Array


@frozen
class FoundPrefix:
    """The steps, the types of their results, and the nodes that are left.

    `names` are what the tensors of the results are called: a result that is an output of the model
    too is called otherwise where it is an input of the entry.
    """

    prefix: StringPrefix
    results: Mapping[str, tuple[DType, tuple[Dimension, ...]]]
    names: Mapping[str, str]
    nodes: Sequence[NodeProto]


class PrefixFinder:
    """Finds the prefix of the nodes of one graph, which are in order."""

    def __init__(
        self,
        nodes: Sequence[NodeProto],
        outputs: Collection[str],
        scope: NameScope,
        builder: GraphBuilder,
        external: ExternalData | None,
    ) -> None:
        self._nodes, self._outputs = nodes, outputs
        self._scope, self._builder, self._external = scope, builder, external
        self._made = {name: node for node in nodes for name in node.output if name}

    def find(self, inputs: Sequence[ValueInfoProto], shapes: Mapping[str, Shape]) -> FoundPrefix:
        """The prefix; `shapes` are those of inputs that are strings.

        Raises ImportModelError for a node of it that is malformed or not supported.
        """
        taken = self._taken(shapes)
        if not taken:
            return FoundPrefix(StringPrefix(), {}, {}, self._nodes)
        left = [node for number, node in enumerate(self._nodes) if number not in taken]
        read = {name for node in left for name in names_read(node)} | set(self._outputs)
        known: dict[str, tuple[DType, Shape]] = {n: (DType.STRING, s) for n, s in shapes.items()}
        steps, makers = list[StringStep](), dict[str, str]()
        for number in sorted(taken):
            node = self._nodes[number]
            for name in node.input:
                if name not in known and name and self._is_string(name):
                    known[name] = self._constant_step(name, steps)
            steps.append(self._step(node, known))
            makers |= {name: f"{node.op_type} {name_of(node)!r}" for name in node.output}
        results: dict[str, tuple[DType, tuple[Dimension, ...]]] = {}
        for name in (name for name in makers if name in read):
            dtype, shape = known[name]
            sizes = tuple(size for size in shape if size is not None)
            if len(sizes) < len(shape):
                raise UnsupportedOperatorError(
                    f"how many strings {makers[name]} gives depends on its data, and only "
                    "operators that run before the compiled code can read them",
                    hint="those of the domains of ONNX that do: "
                    + ", ".join(operator for _, operator in OPERATORS),
                )
            results[name] = dtype, tuple(_own(size, name, axis) for axis, size in enumerate(sizes))
        ports = tuple(
            replace(port, position=position)
            for position, port in enumerate(map(_port, inputs))
            if port.name in shapes and port.name not in read and self._is_read(port.name, steps)
        )
        names = {n: f"{n} of strings" if n in self._outputs else n for n in results}
        renamed = tuple(_renamed(step, names) for step in steps)
        prefix = StringPrefix(ports, renamed, tuple(names.values()))
        return FoundPrefix(prefix, results, names, left)

    @staticmethod
    def _is_read(name: str, steps: Sequence[StringStep]) -> bool:
        return any(name in step.inputs for step in steps)

    def _taken(self, texts: Collection[str]) -> set[int]:
        """The numbers of the nodes of the prefix."""
        able, strings = set[int](), set(texts)
        for number, node in enumerate(self._nodes):
            operator = _operator(node)
            if operator is None or not self._is_able(node, operator, strings):
                continue
            able.add(number)
            strings.update(node.output[: operator.strings])
        taken, behind = set[int](), set[str]()
        for number in sorted(able):
            node, operator = self._nodes[number], _operator(self._nodes[number])
            if (operator and operator.computes) or not behind.isdisjoint(node.input):
                taken.add(number)
                behind.update(node.output[: operator.strings if operator else 0])
        needed = {name for number in taken for name in self._nodes[number].input}
        for number in sorted(able - taken, reverse=True):
            if not needed.isdisjoint(self._nodes[number].output):
                taken.add(number)
                needed.update(self._nodes[number].input)
        return taken

    def _is_able(self, node: NodeProto, operator: StringOperator, strings: set[str]) -> bool:
        """Whether a node reads strings that the host has, and otherwise constants."""
        count = len(node.input) - len(operator.takes) if len(node.input) > 1 else 1
        given = node.input[: max(count, 1)]
        others = node.input[max(count, 1) :]
        return (
            any(name in strings for name in given)
            and all(name in strings or (name and self._is_string(name)) for name in given)
            and all(not name or self._array(name) is not None for name in others)
        )

    def _is_string(self, name: str) -> bool:
        """Whether a name is a constant of strings."""
        array = self._array(name)
        return array is not None and array.dtype.kind == "O"

    def _array(self, name: str) -> Array | None:
        """What a constant holds; None for what is none."""
        node = self._made.get(name)
        if node is not None:
            if node.op_type != "Constant" or node.domain:
                return None
            attributes = self._attributes(node)
            value = next(iter(attributes.values()), None)
            return _array_of(value)
        if not self._scope.knows(name):
            return None
        value = self._scope.lookup(name)
        if not isinstance(value, Value) or value.array is None:
            return None
        is_string = value.dtype is DType.STRING
        return self._builder.words.texts(value.array) if is_string else value.array

    def _attributes(self, node: NodeProto) -> Mapping[str, object]:
        allowance = self._builder.allowance
        return decode_attributes(node.attribute, _label(node), self._external, allowance)

    def _constant_step(self, name: str, steps: list[StringStep]) -> tuple[DType, Shape]:
        array = self._array(name)
        assert array is not None
        items = tuple(map(str, array.ravel().tolist()))
        attributes = (("shape", tuple(array.shape)), ("value", items))
        steps.append(StringStep("Constant", (), (name,), attributes))
        return DType.STRING, array.shape

    def _step(self, node: NodeProto, known: dict[str, tuple[DType, Shape]]) -> StringStep:
        operator = _operator(node)
        assert operator is not None
        attributes = dict(self._attributes(node))
        given = node.input
        if operator.takes and len(node.input) > 1:
            given = node.input[: -len(operator.takes)]
            for what, name in zip(operator.takes, node.input[len(given) :], strict=True):
                array = self._array(name) if name else None
                if array is not None:
                    attributes[what] = tuple(map(int, array.ravel().tolist()))
        plain = dict[str, StringAttribute]()
        for name, value in attributes.items():
            if not isinstance(value, str | int | float | tuple):
                raise ImportModelError(f"{_label(node)}: the attribute {name} is not supported")
            plain[name] = value
        try:
            results = operator.infer(plain, [known[name][1] for name in given])
        except StringOperatorError as error:
            raise ImportModelError(f"{_label(node)}: {error}") from error
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise ImportModelError(f"{_label(node)} is malformed: {error}") from error
        known.update(zip(node.output, results, strict=False))
        return StringStep(
            node.op_type, tuple(given), tuple(node.output), tuple(sorted(plain.items()))
        )


def _renamed(step: StringStep, names: Mapping[str, str]) -> StringStep:
    inputs, outputs = (tuple(names.get(n, n) for n in each) for each in (step.inputs, step.outputs))
    return replace(step, inputs=inputs, outputs=outputs)


def _own(size: Dimension, name: str, axis: int) -> Dimension:
    """A size that the compiled code reads from a result: a symbol, or a number."""
    if isinstance(size, int) or size.symbol is not None:
        return size
    return Symbol.of(f"{name}_{axis}", *bounds_of(size))


def _operator(node: NodeProto) -> StringOperator | None:
    return OPERATORS.get((canonical_domain(node.domain), node.op_type))


def _label(node: NodeProto) -> str:
    return f"{node.op_type} {name_of(node)!r}"


def _port(info: ValueInfoProto) -> StringPort:
    if info.type.WhichOneof("value") != "tensor_type":
        return StringPort(info.name, None, 0)
    return StringPort(info.name, declared_port(info).shape, 0)


def _array_of(value: object) -> Array | None:
    """The value of a Constant."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, str) or (isinstance(value, tuple) and value and isinstance(value[0], str)):
        return np.array(value, object)
    return np.array(value) if isinstance(value, int | float | tuple) else None
