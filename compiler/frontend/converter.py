"""The registry of converters: one function per ONNX operator and range of versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
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


# The registry of what is done about run-time operands that shapes or places depend on.
#
# Converters take such operands as constants. Where one is computed, the function registered here
# for its position comes first: it either settles it (the shape that the model declares of the
# result leaves one choice, which a check at run time asks for) and gives the node back with
# constants, or it converts the node itself, with places that are computed.

ConvertDynamic: TypeAlias = Callable[[OnnxNode, GraphBuilder], OnnxNode | Value | Sequence[Value]]

_FOR_OPERANDS: dict[str, tuple[frozenset[int], ConvertDynamic]] = {}
_PADDED: set[str] = set()
_SIZED: set[str] = set()


def dynamic_operand(
    *operators: str, at: Sequence[int], padded: bool = False, sized: bool = False
) -> Callable[[ConvertDynamic], ConvertDynamic]:
    """Register a function for nodes of ONNX's operators with a computed operand `at` a position.

    With `padded` it knows of operands some of whose sizes are dynamic. With `sized` it is for these
    even where no operand is computed: for those of ONNX's functions whose bodies say of sizes what
    cannot be told of symbols.
    """

    def register(function: ConvertDynamic) -> ConvertDynamic:
        for operator in operators:
            if operator in _FOR_OPERANDS:
                raise ValueError(f"{operator} has two functions for computed operands")
            _FOR_OPERANDS[operator] = (frozenset(at), function)
            _PADDED.update((operator,) if padded or sized else ())
            _SIZED.update((operator,) if sized else ())
        return function

    return register


def find_dynamic_operand(
    domain: str, operator: str, inputs: Sequence[Entity | None]
) -> ConvertDynamic | None:
    """The function for a node with these operands.

    None where all that matter are constants or computed of run-time sizes, unless it is for these,
    and where one is padded of which the function knows nothing.
    """
    if domain or operator not in _FOR_OPERANDS:
        return None
    positions, function = _FOR_OPERANDS[operator]
    values = [value for value in inputs if isinstance(value, Value)]
    if any(value.padded is not None for value in values):
        if operator in _SIZED:
            return function
        if operator not in _PADDED:
            return None
    operands = [inputs[position] for position in positions if position < len(inputs)]
    given = [value for value in operands if isinstance(value, Value)]
    is_computed = any(value.array is None and value.sizes is None for value in given)
    is_sized = operator in _SIZED and any(value.sizes is not None for value in given)
    return function if is_computed or is_sized else None
