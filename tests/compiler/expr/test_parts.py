from __future__ import annotations

import math

from tunefarm.compiler.expr.nodes import Expr, Load, binary, const, integer, unary
from tunefarm.compiler.expr.parts import Quantised, float_bounds, quantised_parts
from tunefarm.compiler.types.dtypes import DType

X = Load(DType.F32, "x", (integer(0),))


def number(value: float) -> Expr:
    return const(value, DType.F32)


def test_bounds_are_those_that_a_number_is_clipped_to() -> None:
    assert float_bounds(binary("min", binary("max", X, number(-1)), number(6))) == (-1, 6)
    assert float_bounds(binary("max", number(2), binary("min", number(6), X))) == (2, 6)
    assert float_bounds(binary("max", binary("min", X, number(-3)), number(0))) == (0, 0)


def test_what_is_clipped_on_one_side_has_no_bound_on_the_other() -> None:
    assert float_bounds(binary("min", X, number(6))) == (-math.inf, 6)
    assert float_bounds(binary("max", X, number(0))) == (0, math.inf)


def test_other_arithmetic_has_no_bounds() -> None:
    clipped = binary("min", binary("max", X, number(0)), number(6))
    for expr in (X, binary("add", clipped, X), binary("max", clipped, X)):
        assert float_bounds(expr) == (-math.inf, math.inf)


def test_what_is_rounded_and_clipped_at_integers_is_quantised() -> None:
    shifted = binary("add", unary("round", X), number(-3))
    parts = quantised_parts(binary("min", binary("max", shifted, number(0)), number(255)))
    assert parts == Quantised(X, -3, 0, 255)


def test_what_is_clipped_between_integers_or_not_rounded_is_not() -> None:
    rounded = unary("round", X)
    assert quantised_parts(binary("min", binary("max", rounded, number(0)), number(9))) is not None
    assert quantised_parts(binary("min", binary("max", rounded, number(0)), number(9.5))) is None
    assert quantised_parts(binary("min", binary("max", X, number(0)), number(9))) is None
    assert quantised_parts(binary("min", rounded, number(9))) is None
