"""A call of a function by name: code that is not ours, see `compiler.foreign_functions`.

A call has one node for each of its results, which have the attribute `call` in common.
"""

from __future__ import annotations

from compiler.errors import ShapeError
from compiler.operators.registry import REQUIRED, OperatorDefinition, Pattern, register
from compiler.operators.rules import check
from compiler.operators.use import Attributes, Types
from compiler.types.dtypes import DType
from compiler.types.tensor_type import TensorType

ABSENT = "-"
MOST_OPERANDS = 1024


def type_text(type: TensorType | None) -> str:
    """A type as an attribute: "f32 2 3", or "-" of an operand that is absent."""
    return ABSENT if type is None else " ".join((str(type.dtype), *map(str, type.shape)))


def type_of_text(text: str) -> TensorType | None:
    """The inverse of `type_text`."""
    if text == ABSENT:
        return None
    dtype, *extents = text.split(" ")
    return TensorType(DType(dtype), tuple(map(int, extents)))


def _infer(attributes: Attributes, types: Types) -> TensorType:
    """What the type rule said when the model was imported, of operands of the types it saw."""
    wanted = types_of_texts(attributes, "operands")
    if tuple(types) != wanted[: len(types)] or any(wanted[len(types) :]):
        listed = ", ".join("absent" if type is None else str(type) for type in wanted)
        raise ShapeError(f"the function was bound to operands ({listed})")
    results, number = types_of_texts(attributes, "results"), attributes.integer("number")
    check(0 <= number < len(results), f"the function has no result {number}")
    result = results[number]
    check(result is not None, "a result cannot be absent")
    assert result is not None
    return result


def types_of_texts(attributes: Attributes, name: str) -> tuple[TensorType | None, ...]:
    """The types that an attribute lists."""
    return tuple(map(type_of_text, attributes.texts(name)))


register(
    OperatorDefinition(
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
)
