"""The registry of converters: one function per ONNX operator and range of versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tunefarm.compiler.frontend.graph_builder import GraphBuilder
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.structured_values import Entity

Converter: TypeAlias = Callable[[OnnxNode, GraphBuilder], Entity | Sequence[Entity]]

_CONVERTERS: dict[tuple[str, str], dict[int, Converter]] = {}


def converter(operator: str, *versions: int, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a function as the converter of `operator` at the given since-versions.

    A since-version is the opset in which ONNX last changed the operator; the version in force for a
    model is the largest one that its opset reaches. A version that is not listed is refused.
    """

    def register(function: Converter) -> Converter:
        table = _CONVERTERS.setdefault((domain, operator), {})
        for version in versions:
            if version in table:
                raise ValueError(f"{operator} version {version} has two converters")
            table[version] = function
        return function

    return register


def find_converter(domain: str, operator: str, since_version: int) -> Converter | None:
    """The converter of one version of an operator, or None."""
    return _CONVERTERS.get((domain, operator), {}).get(since_version)


def find_unlisted_converter(domain: str, operator: str, opset: int) -> Converter | None:
    """The converter of an operator that no schema describes: of its largest version that the opset
    of its domain reaches."""
    table = _CONVERTERS.get((domain, operator), {})
    reached = max((version for version in table if version <= opset), default=0)
    return table.get(reached)


def covered_versions(domain: str, operator: str) -> tuple[int, ...]:
    """The since-versions that have a converter, ascending."""
    return tuple(sorted(_CONVERTERS.get((domain, operator), {})))


def converted_operators() -> tuple[tuple[str, str], ...]:
    """Every (domain, operator) that has a converter, sorted."""
    return tuple(sorted(_CONVERTERS))
