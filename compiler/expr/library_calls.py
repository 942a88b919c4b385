"""Which scalar functions are calls of the C library: once for each element, vectors or not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tunefarm.compiler.expr.functions import BINARY, UNARY
from tunefarm.compiler.expr.instructions import Instructions
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Unary
from tunefarm.compiler.types.dtypes import DType


def calls_library(node: Expr) -> bool:
    """Whether the code of a node, its operands left aside, calls the C library."""
    match node:
        case Unary(op=op, operand=operand):
            return _calls(op, operand.dtype, (_literal(operand),))
        case Binary(op=op, left=left, right=right):
            return _calls(op, left.dtype, (_literal(left), _literal(right)))
        case _:
            return False


def _literal(operand: Expr) -> float | None:
    """Its value, if it has one: of a power of 2 there is nothing to call."""
    return float(operand.value) if isinstance(operand, Const) else None


@cache
def _calls(op: str, dtype: DType, literals: tuple[float | None, ...]) -> bool:
    function = (UNARY if len(literals) == 1 else BINARY)[op]
    writer = _Notes()
    vectors = Instructions(writer, dtype, 4)
    operands = ["%operand" if value is None else vectors.constant(value) for value in literals]
    function.emit(vectors, *operands)
    return writer.called


class _Notes:
    """Takes what a function emits, and notes whether a library function is called."""

    has_fma = True
    has_avx512 = False
    converted = frozenset[DType]()
    fixed_rounding = False

    def __init__(self) -> None:
        self.called = False

    def emit(self, operation: str) -> str:
        return "%value"

    def intrinsic(self, name: str, result: str, arguments: list[str], flags: str = "") -> str:
        self.called |= not name.startswith("llvm.")
        return "%value"

    def rarely(self, condition: str, usual: str, rare: Callable[[], str], type: str) -> str:
        """What is emitted for rare values costs nothing."""
        return usual
