"""Operator schemas, with the parts of onnx.defs that its type stubs leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from onnx import AttributeProto, defs


class AttributeKind(Protocol):
    """The enumeration member that stands for an attribute's type."""

    @property
    def value(self) -> int: ...


class SchemaAttribute(Protocol):
    """An attribute of an operator; `default_value` has no name when there is no default."""

    @property
    def type(self) -> AttributeKind: ...
    @property
    def required(self) -> bool: ...
    @property
    def default_value(self) -> AttributeProto: ...


class Schema(Protocol):
    """The definition of one version of an operator."""

    @property
    def since_version(self) -> int: ...
    @property
    def deprecated(self) -> bool: ...
    @property
    def min_input(self) -> int: ...
    @property
    def max_input(self) -> int: ...
    @property
    def min_output(self) -> int: ...
    @property
    def max_output(self) -> int: ...
    @property
    def inputs(self) -> Sequence[defs.OpSchema.FormalParameter]: ...
    @property
    def attributes(self) -> Mapping[str, SchemaAttribute]: ...
    @property
    def non_deterministic(self) -> bool: ...
    @property
    def function_opset_versions(self) -> Sequence[int]: ...
    @property
    def context_dependent_function_opset_versions(self) -> Sequence[int]: ...
    def get_function_with_opset_version(self, version: int, /) -> bytes: ...
    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, types: Sequence[bytes], /
    ) -> bytes: ...


def find_schema(domain: str, operator: str, opset: int) -> Schema | None:
    """The schema in force at `opset`; None when there is none, or a deprecated one."""
    if not defs.has(operator, opset, domain):
        return None
    schema = cast(Schema, defs.get_schema(operator, opset, domain))
    return None if schema.deprecated else schema
