"""A call of a custom operator: code that is not ours, see `tunefarm.compiler.foreign_functions`.

A call has one node for each of its results, which have the attribute `call` in common. Where sizes
are open the types say what is there of each axis, in terms of a vector of sizes that is the last
operand (`tunefarm.compiler.types.open_axes`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    define,
)
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.open_axes import OpenAxes, bound_shape
from tunefarm.compiler.types.tensor_type import TensorType

ABSENT = "-"
MOST_OPERANDS = 1024


@frozen
class CalledType:
    """The type of an operand or result at the bounds of all sizes, and what is there of its axes;
    None where all is."""

    type: TensorType
    axes: OpenAxes | None = None


def type_text(type: TensorType | None, axes: OpenAxes | None = None) -> str:
    """A type as an attribute: "f32 2 3", "f32 @0/8 3" with an axis of which only so much is there
    as element 0 of the sizes says, or "-" of an operand that is absent."""
    if type is None:
        return ABSENT
    extents = type.shape if axes is None else tuple(map(_axis_text, axes))
    return " ".join((str(type.dtype), *map(str, extents)))


def _axis_text(axis: Sequence[tuple[int, int]]) -> str:
    if len(axis) == 1 and axis[0][0] == axis[0][1]:
        return str(axis[0][1])
    return ".".join(f"{true if true >= 0 else f'@{~true}'}/{extent}" for true, extent in axis)


def type_of_text(text: str) -> CalledType | None:
    """The inverse of `type_text`."""
    if text == ABSENT:
        return None
    dtype, *extents = text.split(" ")
    if "/" not in text:
        return CalledType(TensorType(DType(dtype), tuple(map(int, extents))))
    axes = tuple(map(_axis_of_text, extents))
    return CalledType(TensorType(DType(dtype), bound_shape(axes)), axes)


def _axis_of_text(text: str) -> tuple[tuple[int, int], ...]:
    if "/" not in text:
        return ((int(text), int(text)),)
    factors = (factor.split("/") for factor in text.split("."))
    return tuple(
        (~int(true[1:]) if true.startswith("@") else int(true), int(extent))
        for true, extent in factors
    )


def _infer(attributes: Attributes, types: Types) -> TensorType:
    """What the type rule said when the model was imported, of operands of the types it saw."""
    wanted = [
        None if called is None else called.type for called in types_of_texts(attributes, "operands")
    ]
    given = list(types)
    if reads_sizes(attributes) and len(given) > len(wanted):
        sizes = given.pop()
        check(
            sizes is not None and sizes.dtype is DType.I64 and len(sizes.shape) == 1,
            f"the function's sizes cannot be {sizes}",
        )
    if given != wanted[: len(given)] or any(wanted[len(given) :]):
        listed = ", ".join("absent" if type is None else str(type) for type in wanted)
        raise ShapeError(f"the function was bound to operands ({listed})")
    results, number = types_of_texts(attributes, "results"), attributes.integer("number")
    check(0 <= number < len(results), f"the function has no result {number}")
    result = results[number]
    check(result is not None, "a result cannot be absent")
    assert result is not None
    return result.type


def types_of_texts(attributes: Attributes, name: str) -> tuple[CalledType | None, ...]:
    """The types that an attribute lists."""
    return tuple(map(type_of_text, attributes.texts(name)))


def reads_sizes(attributes: Attributes) -> bool:
    """Whether some sizes are open, so that the last operand is the vector of them."""
    called = (*types_of_texts(attributes, "operands"), *types_of_texts(attributes, "results"))
    return any(item is not None and item.axes is not None for item in called)


define(
    "function",
    Pattern.FUNCTION,
    (0, MOST_OPERANDS),
    _infer,
    None,
    {
        "name": REQUIRED,
        "version": REQUIRED,
        "symbol": "",
        "context": "",
        "arguments": "{}",
        "operands": REQUIRED,
        "results": REQUIRED,
        "number": 0,
        "call": REQUIRED,
    },
)
