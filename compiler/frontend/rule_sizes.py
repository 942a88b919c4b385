"""RuleSize: a dynamic size, as a function's type rule sees it.

It adds, multiplies and divides as numbers do, so that rules written for numbers work as they are.
What cannot be told before a run, such as whether it is 4, raises `UnknownSizeError`: a rule that
went on with a guess would give a wrong shape.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import NoReturn, TypeAlias, cast

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import (
    Dimension,
    Size,
    bounds_of,
    divide,
    remainder,
)
from tunefarm.compiler.types.tensor_type import TensorType


class UnknownSizeError(Exception):
    """A rule asks what is not known before a run: `question` is "whether n is 4", of a `size`."""

    def __init__(self, question: str, size: Dimension) -> None:
        super().__init__(question)
        self.question, self.size = question, size


_Other: TypeAlias = "RuleSize | int"


class RuleSize:
    """A dimension that is no number; what comes out as one is an `int`."""

    __slots__ = ("size",)

    def __init__(self, size: Size) -> None:
        self.size = size

    # --- arithmetic -----------------------------------------------------------------------------

    def __add__(self, other: object) -> _Other:
        return _combined(operator.add, self, other)

    def __radd__(self, other: object) -> _Other:
        return _combined(operator.add, other, self)

    def __sub__(self, other: object) -> _Other:
        return _combined(operator.sub, self, other)

    def __rsub__(self, other: object) -> _Other:
        return _combined(operator.sub, other, self)

    def __mul__(self, other: object) -> _Other:
        return _combined(operator.mul, self, other)

    def __rmul__(self, other: object) -> _Other:
        return _combined(operator.mul, other, self)

    def __floordiv__(self, other: object) -> _Other:
        return _divided(divide, self, other)

    def __rfloordiv__(self, other: object) -> _Other:
        return _divided(divide, other, self)

    def __mod__(self, other: object) -> _Other:
        return _divided(remainder, self, other)

    def __rmod__(self, other: object) -> _Other:
        return _divided(remainder, other, self)

    def __divmod__(self, other: object) -> tuple[_Other, _Other]:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> tuple[_Other, _Other]:
        return other // self, other % self

    def __neg__(self) -> _Other:
        return self * -1

    def __pos__(self) -> RuleSize:
        return self

    def __pow__(self, other: object) -> _Other:
        exponent = _dimension(other)
        if not isinstance(exponent, int) or not 0 <= exponent <= 8:
            self._refuse(f"what {self} ** {other} is")
        return prod([self] * exponent) if exponent else 1

    # --- comparisons, where bounds tell ---------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not _is_integer(other):
            return NotImplemented
        low, high = bounds_of(self.size - _dimension(other))
        if low <= 0 <= high and low != high:
            self._refuse(f"whether {self} is {other}")
        return low == high == 0

    def __hash__(self) -> int:
        return hash(self.size)

    def __lt__(self, other: object) -> bool:
        return self._is_less(self.size, _dimension(other), f"{self} < {other}")

    def __le__(self, other: object) -> bool:
        return not self._is_less(_dimension(other), self.size, f"{self} <= {other}")

    def __gt__(self, other: object) -> bool:
        return self._is_less(_dimension(other), self.size, f"{self} > {other}")

    def __ge__(self, other: object) -> bool:
        return not self._is_less(self.size, _dimension(other), f"{self} >= {other}")

    def __bool__(self) -> bool:
        return self != 0

    def _is_less(self, left: Dimension, right: Dimension, question: str) -> bool:
        low, high = bounds_of(left - right)
        if low < 0 <= high:
            self._refuse(f"whether {question}")
        return high < 0

    # --- what needs a number --------------------------------------------------------------------

    def __index__(self) -> int:
        raise UnknownSizeError(f"which number {self} is", self.size)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __truediv__(self, other: object) -> float:
        self._refuse(f"what {self} / {other} is (that of // is known)")

    def __rtruediv__(self, other: object) -> float:
        self._refuse(f"what {other} / {self} is (that of // is known)")

    def __str__(self) -> str:
        return str(self.size)

    __repr__ = __str__

    def _refuse(self, question: str) -> NoReturn:
        raise UnknownSizeError(question, self.size)


def rule_type(dtype: DType, shape: Sequence[Dimension]) -> TensorType:
    """A type as a rule sees it."""
    seen = (RuleSize(size) if isinstance(size, Size) else size for size in shape)
    # The rule computes with these as with numbers, and hands them on.
    return TensorType(dtype, cast("tuple[int, ...]", tuple(seen)))


def dimension_of(given: object) -> Dimension:
    """A dimension that a rule gave, which is never less than 0.

    Raises `TypeError` for what is no dimension, `ValueError` for one that may be less than 0.
    """
    dimension = _dimension(given)
    if bounds_of(dimension)[0] < 0:
        raise ValueError(f"may be less than 0: {dimension}")
    return dimension


def _dimension(value: object) -> Dimension:
    return value.size if isinstance(value, RuleSize) else operator.index(cast("int", value))


def _result(dimension: Dimension) -> _Other:
    return RuleSize(dimension) if isinstance(dimension, Size) else dimension


def _combined(
    function: Callable[[Dimension, Dimension], Dimension], left: object, right: object
) -> _Other:
    if not (_is_integer(left) and _is_integer(right)):
        return NotImplemented  # type: ignore[no-any-return]  # what operators return, and lists ask
    return _result(function(_dimension(left), _dimension(right)))


def _divided(
    function: Callable[[Dimension, Dimension], Dimension], left: object, right: object
) -> _Other:
    """Quotients and remainders, by numbers below 0 too."""
    if not (_is_integer(left) and _is_integer(right)):
        return NotImplemented  # type: ignore[no-any-return]
    divisor = _dimension(right)
    if isinstance(divisor, Size) and divisor.bounds[0] < 1:
        raise UnknownSizeError(f"that the divisor {divisor} is not less than 1", divisor)
    if isinstance(divisor, int) and divisor < 1:
        if divisor == 0:
            raise ZeroDivisionError("division by zero")
        sign = 1 if function is divide else -1
        return _result(function(_dimension(left) * -1, -divisor) * sign)
    return _result(function(_dimension(left), divisor))


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__")
