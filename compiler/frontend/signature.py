"""Checks a node against its operator's schema: attributes, number of inputs and outputs, types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from onnx import AttributeProto, NodeProto, defs

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.graph_builder import Value
from tunefarm.compiler.frontend.structured_values import Entity, schema_kind


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal input: its type variable (or type), the types allowed, whether it may be absent."""

    name: str
    variable: str
    types: frozenset[str]
    required: bool
    homogeneous: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """What a schema says about a node's form."""

    since_version: int
    deterministic: bool
    has_body: bool
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    inputs: tuple[Formal, ...]
    variadic: bool  # the last formal input stands for any number
    attributes: Mapping[str, int]  # AttributeProto type
    required: tuple[str, ...]


def find_schema(domain: str, operator: str, opset: int) -> Any | None:
    """The `onnx.defs.OpSchema` in force at `opset`; None when there is none, or a deprecated one.

    Without a type: ONNX's stubs leave out bodies, determinism and the numbers of attribute types.
    """
    if not defs.has(operator, opset, domain):
        return None
    schema = defs.get_schema(operator, opset, domain)
    return None if schema.deprecated else schema


def has_body(schema: Any) -> bool:
    """Whether ONNX defines this version of an operator by other operators."""
    return bool(schema.function_opset_versions or schema.context_dependent_function_opset_versions)


@lru_cache(maxsize=1024)
def find_signature(domain: str, operator: str, opset: int) -> Signature | None:
    """The signature in force at `opset`, or None when ONNX has no such operator (any more)."""
    schema = find_schema(domain, operator, opset)
    if schema is None:
        return None
    option = defs.OpSchema.FormalParameterOption
    inputs = tuple(
        Formal(
            formal.name,
            formal.type_str,
            frozenset(formal.types),
            formal.option == option.Single,
            formal.is_homogeneous,
        )
        for formal in schema.inputs
    )
    return Signature(
        schema.since_version,
        not schema.non_deterministic,
        has_body(schema),
        schema.min_input,
        schema.max_input,
        schema.min_output,
        schema.max_output,
        inputs,
        bool(inputs) and schema.inputs[-1].option == option.Variadic,
        MappingProxyType({name: a.type.value for name, a in schema.attributes.items()}),
        tuple(name for name, a in schema.attributes.items() if a.required),
    )


def check_form(node: NodeProto, signature: Signature, label: str) -> None:
    """Number of inputs and outputs, names and types of attributes. Raises ImportModelError."""
    _check_count(len(node.input), signature.min_inputs, signature.max_inputs, "input", label)
    _check_count(len(node.output), signature.min_outputs, signature.max_outputs, "output", label)
    seen: set[str] = set()
    for attribute in node.attribute:
        name = attribute.name
        if name in seen:
            raise ImportModelError(f"{label} has the attribute {name!r} twice")
        seen.add(name)
        wanted = signature.attributes.get(name)
        if wanted is None:
            known = ", ".join(sorted(signature.attributes)) or "none"
            raise ImportModelError(f"{label} has no attribute {name!r} (it has: {known})")
        if attribute.type != wanted:
            raise ImportModelError(
                f"{label}: the attribute {name!r} has the type {_type_name(attribute.type)} "
                f"instead of {_type_name(wanted)}"
            )
    for name in signature.required:
        if name not in seen:
            raise ImportModelError(f"{label} needs the attribute {name!r}")


def check_types(inputs: Sequence[Entity | None], signature: Signature, label: str) -> None:
    """Presence and element types of the inputs. Raises ImportModelError."""
    bound: dict[str, str] = {}
    for position, value in enumerate(inputs):
        formal = signature.inputs[min(position, len(signature.inputs) - 1)]
        if value is None:
            if formal.required:
                raise ImportModelError(f"{label}: the input {formal.name!r} is missing")
            continue
        type_name = schema_kind(value)
        if type_name not in formal.types:
            raise ImportModelError(
                f"{label}: the input {formal.name!r} has the {_kind_text(value)}, "
                "which the operator does not take"
            )
        if not formal.homogeneous:
            continue
        first = bound.setdefault(formal.variable, type_name)
        if first != type_name:
            raise ImportModelError(
                f"{label}: the inputs have the element types {first} and {type_name}, "
                "which must be equal"
            )


def _kind_text(value: Entity) -> str:
    return (
        f"element type {value.dtype}" if isinstance(value, Value) else f"type {schema_kind(value)}"
    )


def _check_count(count: int, minimum: int, maximum: int, what: str, label: str) -> None:
    if minimum <= count <= maximum:
        return
    wanted = str(minimum) if minimum == maximum else f"{minimum} to {maximum}"
    if maximum > 1_000_000:
        wanted = f"{minimum} or more"
    raise ImportModelError(f"{label} has {count} {what}s and takes {wanted}")


def _type_name(number: int) -> str:
    names: dict[int, str] = {value: name for name, value in AttributeProto.AttributeType.items()}
    return names.get(number, f"number {number}")
