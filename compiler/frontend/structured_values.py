"""What names of a model can stand for: tensors, sequences of them, and optionals of both.

Sequences and optionals are known while the model is imported: how many tensors there are, in which
order, and whether there is one at all. So they are lists of values here, and no part of the graph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnx import TypeProto, ValueInfoProto

from tunefarm.compiler.errors import ImportModelError, ShapeError, UnsupportedOperatorError
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import Value
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.structure import Label, StructuredPort


@dataclass(frozen=True, slots=True, eq=False)
class SequenceValue:
    """Tensors of one element type; their shapes may differ."""

    items: tuple[Value, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class OptionalValue:
    """A tensor or a sequence, or neither; `kind` is what it would be, as schemas write it."""

    content: Value | SequenceValue | None
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class RecordsValue:
    """A sequence of maps, one for each row of a matrix: what is in each of the labelled columns."""

    rows: Value
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GrowingSequence:
    """In the body of a loop: a sequence that steps before this one have grown.

    What this step has `appended` is all that is known of it here, and how many tensors it had
    before: `first` before the loop, and one of each step, of which this is number `step`.
    """

    appended: tuple[Value, ...]
    dtype: DType
    first: int
    step: Value


@dataclass(frozen=True, slots=True, eq=False)
class StackedSequence:
    """Tensors of one type, as many as `rows` has rows: which may be dynamic."""

    rows: Value

    @property
    def dtype(self) -> DType:
        """That of the tensors."""
        return self.rows.dtype


Entity: TypeAlias = (
    Value | SequenceValue | OptionalValue | RecordsValue | GrowingSequence | StackedSequence
)


def schema_kind(entity: Entity) -> str:
    """The type as operator schemas write it: 'seq(tensor(float))'."""
    match entity:
        case OptionalValue():
            return f"optional({entity.kind})"
        case SequenceValue() | GrowingSequence() | StackedSequence():
            return f"seq(tensor({entity.dtype.onnx_name}))"
        case RecordsValue():
            return f"seq(map(.., tensor({entity.rows.dtype.onnx_name})))"
    return f"tensor({entity.dtype.onnx_name})"


def declared_kind(proto: TypeProto, what: str) -> str:
    """The type that a model declares, as operator schemas write it.

    Raises UnsupportedOperatorError for maps and sparse tensors; `what` is for the error.
    """
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return f"tensor({dtype_of(proto.tensor_type.elem_type, what).onnx_name})"
    if kind == "sequence_type":
        return f"seq({declared_kind(proto.sequence_type.elem_type, what)})"
    if kind == "optional_type":
        return f"optional({declared_kind(proto.optional_type.elem_type, what)})"
    name = (kind or "no").removesuffix("_type")
    raise UnsupportedOperatorError(
        f"{what} has {name} type, and only tensors, sequences and optionals of them are supported"
    )


def type_proto(entity: Entity | None) -> TypeProto:
    """The type of a value as ONNX's schema functions read it."""
    proto = TypeProto()
    match entity:
        case Value():
            proto.tensor_type.elem_type = entity.dtype.onnx_number
            proto.tensor_type.shape.SetInParent()
            for extent in entity.shape:
                proto.tensor_type.shape.dim.add().dim_value = extent
        case SequenceValue() | GrowingSequence() | StackedSequence():
            proto.sequence_type.elem_type.tensor_type.elem_type = entity.dtype.onnx_number
        case OptionalValue():
            proto.optional_type.elem_type.CopyFrom(type_proto(entity.content))
    return proto


# Inputs and outputs that are sequences or optionals, as the tensors that they are made of.
#
# How many tensors an input sequence has, and whether an optional input is there, is fixed when the
# model is compiled, as shapes of inputs are: `x[0]=2,3` and `x[1]=4` are a sequence of two
# tensors, `x=3` is one of three tensors of the shape that the model declares, `x=0` is empty;
# `x=none` says that the optional `x` is not there.


_MOST = 1024


@frozen
class InputStructure:
    """The inputs as tensors, with the shapes given for them, and what they are put together to."""

    tensors: tuple[ValueInfoProto, ...]
    shapes: Mapping[str, Any]
    ports: tuple[StructuredPort, ...]


def input_structure(inputs: Sequence[ValueInfoProto], shapes: Mapping[str, Any]) -> InputStructure:
    """Take sequences and optionals apart; raises ShapeError for a length that is not given.

    UnsupportedOperatorError for types that are neither, ImportModelError for a length that
    contradicts the shapes given.
    """
    tensors: list[ValueInfoProto] = []
    ports: list[StructuredPort] = []
    left = dict(shapes)
    for info in inputs:
        kind = info.type.WhichOneof("value")
        if kind in ("tensor_type", None):
            tensors.append(info)
            continue
        declared_kind(info.type, f"input {info.name!r}")
        port = _port(info.name, info.type, left)
        ports.append(port)
        element = _element(info.type)
        for member in port.members or ():
            tensor = ValueInfoProto(name=member)
            tensor.type.CopyFrom(element)
            if port.listed:  # a symbol may be another number in each of them
                for dimension in tensor.type.tensor_type.shape.dim:
                    dimension.ClearField("dim_param")
            tensors.append(tensor)
    return InputStructure(tuple(tensors), left, tuple(ports))


def _port(name: str, type: TypeProto, shapes: dict[str, Any]) -> StructuredPort:
    content = type
    if type.WhichOneof("value") == "optional_type":
        content = type.optional_type.elem_type
        if name in shapes and shapes[name] is None:
            del shapes[name]
            return StructuredPort(name, None, content.WhichOneof("value") == "sequence_type")
    if content.WhichOneof("value") == "tensor_type":
        return StructuredPort(name, (name,), False)
    length = _length(name, shapes)
    return StructuredPort(name, tuple(f"{name}[{i}]" for i in range(length)), True)


def _length(name: str, shapes: dict[str, Any]) -> int:
    given = [
        int(m[1]) for key in shapes if (m := re.fullmatch(rf"{re.escape(name)}\[(\d+)\]", key))
    ]
    if name in shapes:
        shape = tuple(shapes.pop(name) or ())
        if len(shape) != 1 or not isinstance(shape[0], int) or not 0 <= shape[0] <= _MOST:
            raise ImportModelError(
                f"input {name!r} is a sequence, and {list(shape)} is no length of one",
                hint=f"{name}=3 is a sequence of three tensors, {name}[0]=2,3 the shape of one",
            )
        if given and max(given) >= shape[0]:
            raise ImportModelError(
                f"input {name!r} has the length {shape[0]}, and a shape is given for "
                f"{name}[{max(given)}]"
            )
        return shape[0]
    if not given:
        raise ShapeError(
            f"input {name!r} is a sequence, whose length must be known",
            hint=f"give its length, --shape {name}=3, or its tensors' shapes, "
            f"--shape {name}[0]=2,3 --shape {name}[1]=4",
        )
    if max(given) >= _MOST:
        raise ImportModelError(f"input {name!r} is a sequence of more than {_MOST} tensors")
    return max(given) + 1


def _element(type: TypeProto) -> TypeProto:
    if type.WhichOneof("value") == "optional_type":
        return _element(type.optional_type.elem_type)
    if type.WhichOneof("value") == "sequence_type":
        return _element(type.sequence_type.elem_type)
    return type


def structured_input(
    port: StructuredPort, info: ValueInfoProto, tensors: Mapping[str, Value]
) -> Entity:
    """What an input's name stands for, made of its tensors."""
    element = _element(info.type)
    content: Value | SequenceValue | None = None
    if port.members is not None:
        items = tuple(tensors[member] for member in port.members)
        dtype = dtype_of(element.tensor_type.elem_type, f"input {info.name!r}")
        content = SequenceValue(items, dtype) if port.listed else items[0]
    if info.type.WhichOneof("value") == "optional_type":
        kind = declared_kind(info.type.optional_type.elem_type, f"input {info.name!r}")
        return OptionalValue(content, kind if content is None else schema_kind(content))
    assert content is not None
    return content


def structured_output(
    name: str, entity: SequenceValue | OptionalValue | RecordsValue
) -> tuple[StructuredPort, list[tuple[str, Value]]]:
    """An output and the tensors that it is made of, with their names."""
    if isinstance(entity, RecordsValue):
        return StructuredPort(name, (name,), True, entity.labels), [(name, entity.rows)]
    content = entity.content if isinstance(entity, OptionalValue) else entity
    if content is None:
        listed = isinstance(entity, OptionalValue) and entity.kind.startswith("seq")
        return StructuredPort(name, None, listed), []
    if isinstance(content, Value):
        return StructuredPort(name, (name,), False), [(name, content)]
    named = [(f"{name}[{number}]", item) for number, item in enumerate(content.items)]
    return StructuredPort(name, tuple(member for member, _ in named), True), named
