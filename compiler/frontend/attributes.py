"""AttributeProto -> Python values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from onnx import AttributeProto

from tunefarm.compiler.errors import ImportModelError, UnsupportedOperatorError
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.frontend.onnx_node import AttributeValue
from tunefarm.compiler.frontend.tensors import read_sparse, read_tensor
from tunefarm.compiler.limits import ResourceBudget


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
            return tuple(_text(value, what) for value in attribute.strings)
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
