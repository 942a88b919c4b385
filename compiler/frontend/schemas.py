"""Operator schemas, with the parts of onnx.defs that its type stubs leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from onnx import AttributeProto, defs


class AttributeKind(Protocol):
    """The enumeration member that stands for an attribute's type."""

    @property
    def value(self) -> int:
        """The number of ONNX's AttributeType."""


class SchemaAttribute(Protocol):
    """An attribute of an operator; `default_value` has no name when there is no default."""

    @property
    def type(self) -> AttributeKind:
        """What kind of value it takes."""

    @property
    def required(self) -> bool:
        """Whether a node must say it."""

    @property
    def default_value(self) -> AttributeProto:
        """What it is where a node does not say it."""


class Schema(Protocol):
    """The definition of one version of an operator."""

    @property
    def since_version(self) -> int:
        """The version of the operator set that brought it."""

    @property
    def deprecated(self) -> bool:
        """Whether it must not be used any more."""

    @property
    def min_input(self) -> int:
        """The minimum number of inputs."""

    @property
    def max_input(self) -> int:
        """The largest number of inputs."""

    @property
    def min_output(self) -> int:
        """The minimum number of outputs."""

    @property
    def max_output(self) -> int:
        """The largest number of outputs."""

    @property
    def inputs(self) -> Sequence[defs.OpSchema.FormalParameter]:
        """The inputs in their order, with names and options."""

    @property
    def attributes(self) -> Mapping[str, SchemaAttribute]:
        """The attributes by name."""

    @property
    def non_deterministic(self) -> bool:
        """Whether runs may differ."""

    @property
    def function_opset_versions(self) -> Sequence[int]:
        """Versions for which there is a body of other operators."""

    @property
    def context_dependent_function_opset_versions(self) -> Sequence[int]:
        """Versions whose body depends on the node."""

    def get_function_with_opset_version(self, version: int, /) -> bytes:
        """The body for a version, serialised."""

    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, types: Sequence[bytes], /
    ) -> bytes:
        """The body for a version and a node with inputs of these types, serialised."""


def find_schema(domain: str, operator: str, opset: int) -> Schema | None:
    """The schema in force at `opset`; None when there is none, or a deprecated one."""
    if not defs.has(operator, opset, domain):
        return None
    schema = cast(Schema, defs.get_schema(operator, opset, domain))
    return None if schema.deprecated else schema
