"""What names of a model can stand for: tensors, sequences of them, and optionals of both.

Sequences and optionals are known while the model is imported: how many tensors there are, in which
order, and whether there is one at all. So they are lists of values here, and no part of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from onnx import TypeProto

from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.frontend.element_types import dtype_of, onnx_number, schema_type_name
from tunefarm.compiler.frontend.graph_builder import Value
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.structure import Label


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
            return f"seq({schema_type_name(entity.dtype)})"
        case RecordsValue():
            return f"seq(map(.., {schema_type_name(entity.rows.dtype)}))"
    return schema_type_name(entity.dtype)


def declared_kind(proto: TypeProto, what: str) -> str:
    """The type that a model declares, as operator schemas write it.

    Raises UnsupportedOperatorError for maps and sparse tensors; `what` is for the error.
    """
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return schema_type_name(dtype_of(proto.tensor_type.elem_type, what))
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
            proto.tensor_type.elem_type = onnx_number(entity.dtype)
            proto.tensor_type.shape.SetInParent()
            for extent in entity.shape:
                proto.tensor_type.shape.dim.add().dim_value = extent
        case SequenceValue() | GrowingSequence() | StackedSequence():
            proto.sequence_type.elem_type.tensor_type.elem_type = onnx_number(entity.dtype)
        case OptionalValue():
            proto.optional_type.elem_type.CopyFrom(type_proto(entity.content))
    return proto
