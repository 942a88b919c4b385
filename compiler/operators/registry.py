"""The operators of the graph: type rule, tensor expression, fusion pattern, attributes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from compiler.errors import ShapeError, UnsupportedOperatorError
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.types.node import Node
from compiler.types.tensor_type import Attribute, TensorType

MAXIMUM_BYTES = 2**40

Attributes: TypeAlias = Mapping[str, Attribute]
Types: TypeAlias = tuple[TensorType | None, ...]
Tensors: TypeAlias = tuple[Tensor | None, ...]
TypeRule: TypeAlias = Callable[[Attributes, Types], TensorType]
ExpressionRule: TypeAlias = Callable[[KernelBuilder, Attributes, Tensors, TensorType], Tensor]


class Pattern(StrEnum):
    """How an operator may be fused."""

    ELEMENTWISE = "elementwise"  # one output element from the inputs' elements at that position
    INJECTIVE = "injective"  # each output element is one input element (or a constant)
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    OPAQUE = "opaque"  # a kernel of its own, nothing is fused with it
    VIEW = "view"  # the same memory under another shape: no code


class Required(Enum):
    """The type of `REQUIRED`, which stands where an attribute has no default."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


@dataclass(frozen=True, slots=True)
class OperatorDefinition:
    """What the compiler knows of one operator.

    `defaults` names every attribute. `infer` gives the result's type or raises `ShapeError`;
    `expression` adds the operator's stages to a builder and returns the result (None for views).
    Both receive complete attributes, and None for an absent optional input.
    """

    name: str
    pattern: Pattern
    min_inputs: int
    max_inputs: int | None  # None: any number
    defaults: Mapping[str, Attribute | Required]
    infer: TypeRule
    expression: ExpressionRule | None


_OPERATORS: dict[str, OperatorDefinition] = {}


def register(
    name: str,
    pattern: Pattern,
    inputs: int | tuple[int, int | None],
    infer: TypeRule,
    expression: ExpressionRule | None,
    **defaults: Attribute | Required,
) -> None:
    """Add an operator with `inputs` (a number, or minimum and maximum) and attribute defaults."""
    if name in _OPERATORS:
        raise ValueError(f"operator {name} is registered twice")
    if (expression is None) != (pattern is Pattern.VIEW):
        raise ValueError(f"operator {name}: exactly the views have no expression")
    minimum, maximum = inputs if isinstance(inputs, tuple) else (inputs, inputs)
    _OPERATORS[name] = OperatorDefinition(
        name, pattern, minimum, maximum, MappingProxyType(defaults), infer, expression
    )


def operator(name: str) -> OperatorDefinition:
    """The definition of an operator; `UnsupportedOperatorError` names the nearest known one."""
    found = _OPERATORS.get(name)
    if found is not None:
        return found
    nearest = difflib.get_close_matches(name, _OPERATORS, n=1)
    hint = f"the nearest known operator is {nearest[0]}" if nearest else ""
    raise UnsupportedOperatorError(f"there is no operator {name!r}", hint=hint)


def all_operators() -> tuple[OperatorDefinition, ...]:
    """Every registered operator, sorted by name."""
    return tuple(_OPERATORS[name] for name in sorted(_OPERATORS))


def complete_attributes(node: Node) -> Attributes:
    """The node's attributes with defaults filled in.

    Raises `ShapeError` for an attribute that the operator does not have or that it needs.
    """
    defaults = operator(node.operator).defaults
    for name in node.attributes:
        if name not in defaults:
            nearest = difflib.get_close_matches(name, defaults, n=1)
            hint = f"the nearest is {nearest[0]}" if nearest else ""
            raise ShapeError(f"{_where(node)} has no attribute {name!r}", hint=hint)
    complete: dict[str, Attribute] = {}
    for name, default in defaults.items():
        if name in node.attributes:
            complete[name] = node.attributes[name]
        elif isinstance(default, Required):
            raise ShapeError(f"{_where(node)} needs the attribute {name!r}")
        else:
            complete[name] = default
    return complete


def infer_type(node: Node, types: Sequence[TensorType | None]) -> TensorType:
    """The type of the node's output; `types` has one entry per input, None where it is absent.

    Raises `UnsupportedOperatorError` or `ShapeError`, naming the node, the reason and the types.
    """
    definition = operator(node.operator)
    attributes = complete_attributes(node)
    _check_arity(node, definition, types)
    for position, type in enumerate(types):
        if type is not None:
            _check_extents(node, f"input {position}", type)
    try:
        result = definition.infer(attributes, tuple(types))
    except ShapeError as error:
        given = ", ".join("absent" if type is None else str(type) for type in types)
        raise ShapeError(f"{_where(node)}({given}): {error.message}", hint=error.hint) from None
    _check_extents(node, "the result", result)
    return result


def add_expression(
    builder: KernelBuilder, node: Node, inputs: Sequence[Tensor | None], type: TensorType
) -> Tensor:
    """Add the node's stages to `builder` and return its result; `type` is the inferred type.

    Raises `ValueError` for a view, which has no expression.
    """
    definition = operator(node.operator)
    if definition.expression is None:
        raise ValueError(f"{node.operator} is a view and has no expression")
    return definition.expression(builder, complete_attributes(node), tuple(inputs), type)


def _where(node: Node) -> str:
    return f"{node.operator} (node {node.source})" if node.source else node.operator


def _check_arity(
    node: Node, definition: OperatorDefinition, types: Sequence[TensorType | None]
) -> None:
    minimum, maximum = definition.min_inputs, definition.max_inputs
    if len(types) != len(node.inputs):
        raise ValueError(f"{_where(node)}: {len(types)} types for {len(node.inputs)} inputs")
    if len(types) < minimum or (maximum is not None and len(types) > maximum):
        wanted = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum or 'any number'}"
        raise ShapeError(f"{_where(node)} takes {wanted} inputs, not {len(types)}")
    needed = len(types) if maximum is None else minimum
    for position in range(needed):
        if types[position] is None:
            raise ShapeError(f"{_where(node)}: input {position} is required but absent")


def _check_extents(node: Node, what: str, type: TensorType) -> None:
    if any(extent < 1 for extent in type.shape):
        raise ShapeError(
            f"{_where(node)}: {what} has the type {type}",
            hint="tensors without elements are not supported",
        )
    if type.bytes >= MAXIMUM_BYTES:
        raise ShapeError(f"{_where(node)}: {what} would take {type.bytes} bytes ({type})")
