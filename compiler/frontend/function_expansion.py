"""Operators that are defined by other operators: schema functions and model-local functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, FunctionProto, NodeProto

from tunefarm.compiler.errors import ImportModelError, UnsupportedOperatorError
from tunefarm.compiler.frontend.read_model import opset_versions
from tunefarm.compiler.frontend.signature import find_schema
from tunefarm.compiler.frontend.structured_values import Entity, type_proto


@dataclass(frozen=True, slots=True)
class FunctionBody:
    """Nodes that compute `outputs` from `inputs`; attribute references are already resolved."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    opsets: Mapping[str, int]


def schema_function(
    node: NodeProto, domain: str, opset: int, inputs: Sequence[Entity | None]
) -> FunctionBody | None:
    """The body that the operator's schema gives for this node, or None when it gives none."""
    schema = find_schema(domain, node.op_type, opset)
    if schema is None:
        return None
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    version = _latest(schema.function_opset_versions, opset)
    if version is not None:
        data = schema.get_function_with_opset_version(version)
        return _instantiate(_parse(data), node, defaults)
    version = _latest(schema.context_dependent_function_opset_versions, opset)
    if version is None:
        return None
    copy = NodeProto()
    copy.CopyFrom(node)
    types = [type_proto(value).SerializeToString() for value in inputs]
    data = schema.get_context_dependent_function_with_opset_version(
        version, copy.SerializeToString(), types
    )
    return _instantiate(_parse(data), node, defaults) if data else None


_TWINS = {"LinearAttention": 27, "CausalConvWithState": 27}
"""Operators of onnxruntime that ONNX has taken over, by the opset that defines them."""
_FORMS_OF_TWINS: Mapping[str, tuple[int, ...]] = {
    "ndim": (1,),
    "dilation": (1,),
    "channels_last": (0,),
    "state_channels_last": (-1, 0),
    "state_window": (0,),
    "state_length": (0,),
    "state_update_capacity": (0,),
    "input_channels": (0,),
    "input_channel_offset": (0,),
}
"""Attributes that onnxruntime alone has, and the values that say what ONNX's operator does."""


def has_twin(domain: str, operator: str) -> bool:
    """Whether an operator of onnxruntime is one of ONNX's own by now."""
    return domain == "com.microsoft" and operator in _TWINS


def twin_function(node: NodeProto, inputs: Sequence[Entity | None]) -> FunctionBody | None:
    """The body of ONNX's operator of the same name.

    Raises `UnsupportedOperatorError` for what ONNX's operator does not do.
    """
    twin = NodeProto()
    twin.CopyFrom(node)
    twin.domain = ""
    for item in node.attribute:
        if item.i not in _FORMS_OF_TWINS.get(item.name, (item.i,)):
            raise UnsupportedOperatorError(f"{item.name}={item.i} is not supported")
    kept = [item for item in node.attribute if item.name not in _FORMS_OF_TWINS]
    del twin.attribute[:]
    twin.attribute.extend(kept)
    return schema_function(twin, "", _TWINS[node.op_type], inputs)


def local_function(function: FunctionProto, node: NodeProto) -> FunctionBody:
    """The body of a function of the model, for one call of it."""
    defaults = {attribute.name: attribute for attribute in function.attribute_proto}
    known = set(function.attribute) | set(defaults)
    for attribute in node.attribute:
        if attribute.name not in known:
            raise ImportModelError(
                f"the function {function.name} has no attribute {attribute.name!r}"
            )
    if len(node.input) > len(function.input) or len(node.output) > len(function.output):
        raise ImportModelError(
            f"the function {function.name} takes {len(function.input)} inputs and has "
            f"{len(function.output)} outputs, called with {len(node.input)} and "
            f"{len(node.output)}"
        )
    return _instantiate(function, node, defaults)


def _latest(versions: Sequence[int], opset: int) -> int | None:
    return max((version for version in versions if version <= opset), default=None)


def _parse(data: bytes) -> FunctionProto:
    function = FunctionProto()
    function.ParseFromString(data)
    return function


def _instantiate(
    function: FunctionProto, node: NodeProto, defaults: Mapping[str, AttributeProto]
) -> FunctionBody:
    actual = dict(defaults) | {attribute.name: attribute for attribute in node.attribute}
    return FunctionBody(
        tuple(function.input),
        tuple(function.output),
        tuple(_resolved(inner, actual) for inner in function.node),
        opset_versions(function.opset_import),
    )


def _resolved(node: NodeProto, actual: Mapping[str, AttributeProto]) -> NodeProto:
    """The node with `ref_attr_name` replaced by the caller's attributes, in subgraphs, too."""
    copy = NodeProto()
    copy.CopyFrom(node)
    _resolve_attributes(copy, actual)
    return copy


def _resolve_attributes(node: NodeProto, actual: Mapping[str, AttributeProto]) -> None:
    resolved: list[AttributeProto] = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            source = actual.get(attribute.ref_attr_name)
            if source is None:
                continue
            copy = AttributeProto()
            copy.CopyFrom(source)
            copy.name = attribute.name
            resolved.append(copy)
            continue
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                _resolve_attributes(inner, actual)
        copy = AttributeProto()
        copy.CopyFrom(attribute)
        resolved.append(copy)
    del node.attribute[:]
    node.attribute.extend(resolved)
