"""OnnxNode: one ONNX node with its attributes decoded and its inputs resolved to values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias, cast

import onnx
from onnx import AttributeProto

from tunefarm.compiler.errors import (
    ComputedShapeError,
    ImportModelError,
    ShapeError,
    UnsupportedOperatorError,
)
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.frontend.graph_builder import Value
from tunefarm.compiler.frontend.run_time_sizes import sizes_text
from tunefarm.compiler.frontend.structured_values import (
    Entity,
    GrowingSequence,
    OptionalValue,
    SequenceValue,
    StackedSequence,
)
from tunefarm.compiler.frontend.tensors import read_sparse, read_tensor
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types.sizes import Dimension, static_shape
from tunefarm.compiler.types.tensor_type import Array

AttributeValue: TypeAlias = (
    int
    | float
    | str
    | tuple[int, ...]
    | tuple[float, ...]
    | tuple[str, ...]
    | Array
    | onnx.GraphProto
    | onnx.TypeProto
)


@dataclass(frozen=True, slots=True, eq=False)
class OnnxNode:
    """A node as its converter sees it.

    `inputs` has None where an optional input is absent; `outputs` has "" where an output is not
    wanted; `names` are those that the model has for the inputs.
    `version` is the since-version in force, `opset` the model's opset of the domain. `declared` has
    the shapes that the model declares of its outputs, None where it does not.
    """

    label: str  # 'Conv node "conv1"', for errors
    domain: str
    operator: str
    version: int
    opset: int
    inputs: tuple[Entity | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    names: tuple[str, ...] = ()
    declared: tuple[tuple[Dimension, ...] | None, ...] = ()

    def input(self, position: int) -> Value:
        """Input `position`, which must be present."""
        value = self.optional(position)
        if value is None:
            raise ImportModelError(f"{self.label}: input {position} is missing")
        return value

    def optional(self, position: int) -> Value | None:
        """Input `position`, or None when it is absent."""
        entity = self.entity(position)
        if entity is None or isinstance(entity, Value):
            return entity
        raise self.invalid(f"input {position} is no tensor")

    def entity(self, position: int) -> Entity | None:
        """Input `position`, whatever it is, or None when it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def sequence(self, position: int) -> SequenceValue:
        """Input `position`, which must be a sequence, or an optional that holds one."""
        entity = self.entity(position)
        content = entity.content if isinstance(entity, OptionalValue) else entity
        if isinstance(content, GrowingSequence | StackedSequence):
            raise self.unsupported(
                f"a sequence ({self.names[position]!r}) whose length is computed at run time"
            )
        if not isinstance(content, SequenceValue):
            raise self.invalid(f"input {position} is no sequence")
        return content

    def name_of(self, value: Value) -> str:
        """The model's name of a value that is an input of the node; else the value's own."""
        named = zip(self.inputs, self.names, strict=False)
        return next((name for given, name in named if given is value), value.name)

    def is_computed(self, position: int) -> bool:
        """Whether input `position` is there and computed, of values and not of sizes."""
        value = self.optional(position)
        return value is not None and value.array is None and value.sizes is None

    def with_constants(self, constants: Mapping[int, Value]) -> OnnxNode:
        """The node with constants for the inputs at these positions."""
        inputs = tuple(constants.get(at, value) for at, value in enumerate(self.inputs))
        return replace(self, inputs=inputs)

    def declared_shape(self, output: int = 0) -> tuple[int, ...] | None:
        """The shape of numbers that the model declares of an output, or lets one conclude."""
        sizes = self.declared_sizes(output)
        return None if sizes is None else static_shape(sizes)

    def declared_sizes(self, output: int = 0) -> tuple[Dimension, ...] | None:
        """As `declared_shape`, of which some may be dynamic."""
        return self.declared[output] if output < len(self.declared) else None

    def present_inputs(self) -> tuple[Value, ...]:
        """All inputs of a variadic operator."""
        return tuple(self.input(position) for position in range(len(self.inputs)))

    def constant(self, position: int, meaning: str) -> Array:
        """The contents of input `position`, which must be constant; `meaning` is for the error."""
        value = self.input(position)
        if value.sizes is not None:
            names = sizes_text(value.sizes)
            raise ShapeError(
                f"{self.label}: {meaning} (input {position}, value {value.name!r}) depends on "
                f"dynamic sizes: {names}",
                hint=f"fix {names} with --shape",
            )
        if value.array is None:
            raise self.not_settled(position, meaning)
        return value.array

    def sizes(self, position: int, meaning: str) -> tuple[Dimension, ...]:
        """The contents of an integer input that is constant or computed of run-time sizes."""
        value = self.input(position)
        if value.sizes is None:
            return self.constant_integers(position, meaning)
        found: list[Dimension] = value.sizes.reshape(-1).tolist()
        return tuple(found)

    def constant_integers(self, position: int, meaning: str) -> tuple[int, ...]:
        """The contents of a constant integer input as a flat tuple."""
        array = self.constant(position, meaning)
        if array.dtype.kind not in "iu" or array.ndim > 1:
            raise ImportModelError(
                f"{self.label}: {meaning} must be a vector of integers, not "
                f"{array.dtype} of shape {list(array.shape)}"
            )
        return tuple(int(element) for element in array.reshape(-1))

    def constant_integer(self, position: int, meaning: str) -> int:
        """The contents of a constant integer input with one element."""
        values = self.constant_integers(position, meaning)
        if len(values) != 1:
            raise ImportModelError(f"{self.label}: {meaning} must have one element")
        return values[0]

    def given_integers(self, name: str, position: int, meaning: str) -> tuple[int, ...] | None:
        """A list that is the attribute `name` in old versions, and input `position` in new ones.

        None where it is absent; a version's schema lets it be one of both.
        """
        if self.has(name):
            return self.integers(name)
        given = self.optional(position) is not None
        return self.constant_integers(position, meaning) if given else None

    def not_settled(self, position: int, meaning: str) -> ComputedShapeError:
        """The error for a computed input of which the shape of the result is not known."""
        return ComputedShapeError(
            f"{self.label}: {meaning} (input {position}, value {self.input(position).name!r}) is "
            "computed at run time, but shapes must be known when the model is compiled",
            hint="fix the input of the model that it depends on (--input NAME=FILE.npy, inputs= in "
            "Python), make it an initializer or a Constant node, or declare the shape of the "
            "node's result in the model (an output or a value_info, of numbers or of names that "
            "--shape gives bounds)",
        )

    def has(self, name: str) -> bool:
        """Whether the node says this attribute."""
        return name in self.attributes

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute; without a default it is required."""
        value = self._attribute(name, default)
        if not isinstance(value, int):
            raise self._mistyped(name, "an integer")
        return value

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """A list-of-integers attribute."""
        value = self._attribute(name, None if default is None else tuple(default))
        if not isinstance(value, tuple) or not set(map(type, value)) <= {int}:
            raise self._mistyped(name, "a list of integers")
        return cast("tuple[int, ...]", value)  # of forests millions: as it is

    def floating(self, name: str, default: float | None = None) -> float:
        """A float attribute."""
        value = self._attribute(name, default)
        if not isinstance(value, float):
            raise self._mistyped(name, "a float")
        return value

    def floats(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """A list-of-floats attribute."""
        value = self._attribute(name, None if default is None else tuple(default))
        if not isinstance(value, tuple) or not set(map(type, value)) <= {int, float}:
            raise self._mistyped(name, "a list of floats")
        return tuple(map(float, cast("tuple[int | float, ...]", value)))

    def string(self, name: str, default: str | None = None) -> str:
        """A string attribute."""
        value = self._attribute(name, default)
        if not isinstance(value, str):
            raise self._mistyped(name, "a string")
        return value

    def strings(self, name: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """A list of strings."""
        value = self._attribute(name, None if default is None else tuple(default))
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise self._mistyped(name, "a list of strings")
        return tuple(str(item) for item in value)

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """A string attribute that must be one of `choices`."""
        value = self.string(name, default)
        if value not in choices:
            raise self.unsupported(f"{name}={value!r} (supported: {', '.join(choices)})")
        return value

    def axis(self, value: int, rank: int, *, end: bool = False) -> int:
        """An axis normalised to non-negative; `end` admits `rank` itself."""
        limit = rank + 1 if end else rank
        if not -rank <= value < limit:
            raise ShapeError(f"{self.label}: axis {value} is outside a tensor of rank {rank}")
        return value if value >= 0 else value + rank

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes normalised to non-negative, ascending; a repeated axis is an error."""
        normal = sorted(self.axis(value, rank) for value in values)
        if len(set(normal)) != len(normal):
            raise ShapeError(f"{self.label}: axes {list(values)} name an axis twice")
        return tuple(normal)

    def wants(self, position: int) -> bool:
        """Whether output `position` is named by the model."""
        return position < len(self.outputs) and bool(self.outputs[position])

    def unsupported(self, what: str) -> UnsupportedOperatorError:
        """The error for a feature of this operator that no converter covers."""
        return UnsupportedOperatorError(f"{self.label}: {what} is not supported")

    def invalid(self, reason: str) -> ImportModelError:
        """The error for a node that contradicts its operator's definition."""
        return ImportModelError(f"{self.label}: {reason}")

    def bad_shape(self, reason: str, hint: str = "") -> ShapeError:
        """The error for operands whose shapes do not fit."""
        return ShapeError(f"{self.label}: {reason}", hint=hint)

    def _attribute(self, name: str, default: AttributeValue | None) -> AttributeValue:
        value = self.attributes.get(name, default)
        if value is None:
            raise self.invalid(f"the attribute {name} is missing")
        return value

    def _mistyped(self, name: str, wanted: str) -> ImportModelError:
        return self.invalid(f"the attribute {name} is not {wanted}")


def decode_attributes(
    attributes: Iterable[AttributeProto],
    label: str,
    external: ExternalData | None,
    allowance: ResourceBudget,
) -> Mapping[str, AttributeValue]:
    """The attributes of a node by name; `label` names the node for errors.

    Raises UnsupportedOperatorError for kinds of attribute that no converter reads.
    """
    return MappingProxyType({a.name: _decode(a, label, external, allowance) for a in attributes})


def _decode(
    attribute: AttributeProto, label: str, external: ExternalData | None, allowance: ResourceBudget
) -> AttributeValue:
    what = f"{label}: the attribute {attribute.name!r}"
    match attribute.type:
        case AttributeProto.INT:
            return int(attribute.i)
        case AttributeProto.FLOAT:
            return float(attribute.f)
        case AttributeProto.STRING:
            return _text(attribute.s, what)
        case AttributeProto.INTS:
            return tuple(attribute.ints)
        case AttributeProto.FLOATS:
            return tuple(attribute.floats)
        case AttributeProto.STRINGS:
            texts = {value: _text(value, what) for value in set(attribute.strings)}
            return tuple(map(texts.__getitem__, attribute.strings))
        case AttributeProto.TENSOR:
            return read_tensor(attribute.t, what, external, allowance)
        case AttributeProto.SPARSE_TENSOR:
            return read_sparse(attribute.sparse_tensor, what, external, allowance)
        case AttributeProto.GRAPH:
            return attribute.g
        case AttributeProto.TYPE_PROTO:
            return attribute.tp
    raise UnsupportedOperatorError(f"{what} has a type that is not supported")


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ImportModelError(f"{what} is not UTF-8 text") from error
