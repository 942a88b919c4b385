"""Affine forms, ranges and decisions agree with evaluating the expression at every point."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tunefarm.compiler.expr.affine import (
    Affine,
    affine,
    affine_range,
    decide,
    expr_range,
    is_exact,
    linear,
    rejoined,
    simplify_division,
)
from tunefarm.compiler.expr.nodes import (
    Binary,
    Const,
    Expr,
    Index,
    Unary,
    add,
    binary,
    index,
    integer,
    mul,
    sub,
    unary,
)

SOME = settings(max_examples=120, deadline=None, derandomize=True, database=None)

RangeMap = dict[str, tuple[int, int]]


def evaluate(expr: Expr, point: Mapping[str, int]) -> int:
    match expr:
        case Const(value=value):
            return int(value)
        case Index(name=name):
            return point[name]
        case Unary(op=op, operand=operand):
            value = evaluate(operand, point)
            return -value if op == "neg" else int(not value)
        case Binary(op=op, left=left, right=right):
            a, b = evaluate(left, point), evaluate(right, point)
            match op:
                case "add":
                    return a + b
                case "sub":
                    return a - b
                case "mul":
                    return a * b
                case "floordiv":
                    return a // b
                case "mod":
                    return a % b
                case "min":
                    return min(a, b)
                case "max":
                    return max(a, b)
                case "and":
                    return a and b
                case "or":
                    return a or b
                case _:
                    sign = (a > b) - (a < b)
                    return int(
                        {
                            "lt": sign < 0,
                            "le": sign <= 0,
                            "gt": sign > 0,
                            "ge": sign >= 0,
                            "eq": sign == 0,
                            "ne": sign != 0,
                        }[op]
                    )
    raise TypeError(expr)


def points(ranges: RangeMap) -> Iterator[dict[str, int]]:
    names = list(ranges)
    for values in itertools.product(*(range(low, high + 1) for low, high in ranges.values())):
        yield dict(zip(names, values, strict=True))


def ranges_of_three() -> st.SearchStrategy[RangeMap]:
    side = st.tuples(st.integers(-4, 4), st.integers(0, 4)).map(lambda p: (p[0], p[0] + p[1]))
    return st.fixed_dictionaries({"i": side, "j": side, "k": side})


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    divisor = st.integers(-6, 6).filter(bool).map(integer)
    return st.one_of(
        st.builds(add, inner, inner),
        st.builds(sub, inner, inner),
        st.builds(mul, inner, st.integers(-4, 4).map(integer)),
        st.builds(mul, inner, inner),
        st.builds(lambda x: unary("neg", x), inner),
        st.builds(
            lambda op, x, d: binary(op, x, d), st.sampled_from(["floordiv", "mod"]), inner, divisor
        ),
        st.builds(lambda op, x, y: binary(op, x, y), st.sampled_from(["min", "max"]), inner, inner),
    )


LEAVES = st.one_of(st.sampled_from("ijk").map(index), st.integers(-9, 9).map(integer))
EXPRESSIONS = st.recursive(LEAVES, _grow, max_leaves=8)
COMPARISONS = st.builds(
    lambda op, a, b: binary(op, a, b),
    st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]),
    EXPRESSIONS,
    EXPRESSIONS,
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds(lambda op, a, b: binary(op, a, b), st.sampled_from(["and", "or"]), inner, inner),
        st.builds(lambda a: unary("not", a), inner),
    ),
    max_leaves=3,
)


@SOME
@given(EXPRESSIONS, ranges_of_three())
def test_the_affine_form_has_the_expressions_value(expr: Expr, ranges: RangeMap) -> None:
    rewritten = affine(expr, ranges).to_expr()
    for point in points(ranges):
        assert evaluate(rewritten, point) == evaluate(expr, point)


@SOME
@given(EXPRESSIONS, ranges_of_three())
def test_ranges_hold_every_value(expr: Expr, ranges: RangeMap) -> None:
    values = [evaluate(expr, point) for point in points(ranges)]
    for low, high in (affine_range(affine(expr, ranges), ranges), expr_range(expr, ranges)):
        assert low <= min(values)
        assert high >= max(values)


@SOME
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from("ijk")), max_size=3),
    st.integers(-5, 5),
    ranges_of_three(),
)
def test_the_range_of_a_linear_form_is_exact(
    terms: list[tuple[int, str]], constant: int, ranges: RangeMap
) -> None:
    expr: Expr = integer(constant)
    for coefficient, name in terms:
        expr = add(expr, mul(index(name), integer(coefficient)))
    values = [evaluate(expr, point) for point in points(ranges)]
    assert affine_range(affine(expr, ranges), ranges) == (min(values), max(values))


@SOME
@given(EXPRESSIONS, ranges_of_three())
def test_the_ends_of_an_exact_range_are_taken(expr: Expr, ranges: RangeMap) -> None:
    form = affine(expr, ranges)
    assume(is_exact(form, ranges))
    values = [evaluate(expr, point) for point in points(ranges)]
    assert affine_range(form, ranges) == (min(values), max(values))


def test_a_range_is_exact_where_no_axis_occurs_twice() -> None:
    ranges = {"i": (0, 3), "j": (0, 3)}
    half = binary("floordiv", mul(index("i"), integer(3)), integer(2))
    for expr, exact in (
        (add(half, index("j")), True),
        (sub(half, index("i")), False),
        (binary("mod", mul(index("i"), integer(3)), integer(2)), False),
        (binary("max", index("i"), index("j")), False),
    ):
        assert is_exact(affine(expr, ranges), ranges) is exact


@SOME
@given(EXPRESSIONS, ranges_of_three())
def test_the_form_as_written_has_the_expressions_value(expr: Expr, ranges: RangeMap) -> None:
    rewritten = linear(expr).to_expr()
    for point in points(ranges):
        assert evaluate(rewritten, point) == evaluate(expr, point)


def test_terms_over_one_axis_are_merged_and_others_left_as_they_are() -> None:
    twice = sub(add(mul(index("i"), integer(3)), integer(4)), index("i"))
    assert linear(twice) == Affine(4, (("i", 2),))
    assert linear(sub(index("i"), index("i"))) == Affine(0, ())
    kept = binary("floordiv", mul(index("i"), integer(8)), integer(8))
    assert linear(add(kept, integer(1))) == Affine(1, ((kept, 1),))


@SOME
@given(EXPRESSIONS, st.integers(1, 20), st.sampled_from(["floordiv", "mod"]), ranges_of_three())
def test_simplified_division_has_the_same_values(
    expr: Expr, divisor: int, op: str, ranges: RangeMap
) -> None:
    simple, plain = simplify_division(op, expr, divisor, ranges), binary(op, expr, integer(divisor))
    for point in points(ranges):
        assert evaluate(simple, point) == evaluate(plain, point)


def test_block_arithmetic_disappears() -> None:
    channel = add(mul(index("j"), integer(5)), index("i"))
    ranges = {"i": (0, 4), "j": (0, 6)}
    assert simplify_division("floordiv", channel, 5, ranges) == index("j")
    assert simplify_division("mod", channel, 5, ranges) == index("i")


@SOME
@given(CONDITIONS, ranges_of_three())
def test_a_decision_holds_at_every_point(condition: Expr, ranges: RangeMap) -> None:
    verdict = decide(condition, ranges)
    assume(verdict is not None)
    assert {bool(evaluate(condition, point)) for point in points(ranges)} == {verdict}


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (binary("floordiv", add(mul(index("i"), integer(8)), index("lane")), integer(8)), "i"),
        (binary("mod", add(mul(index("i"), integer(8)), index("lane")), integer(8)), "lane"),
        (binary("min", index("lane"), integer(7)), "lane"),
        (sub(add(index("i"), index("lane")), index("i")), "lane"),
    ],
)
def test_indices_of_tiles_resolve(expr: Expr, text: str) -> None:
    """What splitting an axis leaves behind goes away."""
    assert affine(expr, {"i": (0, 99), "lane": (0, 7)}).to_expr() == index(text)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (binary("min", index("i"), sub(integer(9), index("i"))), (0, 4)),
        (binary("max", index("i"), sub(integer(9), index("i"))), (5, 9)),
        (binary("mod", index("i"), integer(4)), (0, 3)),
        (binary("floordiv", sub(index("i"), integer(1)), integer(2)), (-1, 4)),
    ],
)
def test_ranges_of_reflections_and_divisions_are_tight(
    expr: Expr, expected: tuple[int, int]
) -> None:
    ranges = {"i": (0, 9)}
    assert affine_range(affine(expr, ranges), ranges) == expected


def test_what_is_not_known_is_not_decided() -> None:
    ranges = {"i": (0, 9)}
    assert decide(binary("lt", index("i"), integer(5)), ranges) is None
    assert decide(binary("lt", index("elsewhere"), integer(5)), ranges) is None
    assert decide(binary("lt", index("i"), integer(10)), ranges) is True
    assert decide(binary("eq", index("i"), integer(10)), ranges) is False


@SOME
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 5))
def test_quotients_and_rests_of_one_dividend_are_rejoined(a: int, b: int, c: int, k: int) -> None:
    extent = 2 * a * b * c
    ranges, m = {"m": (0, extent - 1)}, index("m")
    whole = add(m, integer(k))
    parts = (
        (binary("floordiv", binary("floordiv", whole, integer(b)), integer(c)), b * c),
        (binary("mod", binary("floordiv", whole, integer(b)), integer(c)), b),
        (binary("mod", whole, integer(b)), 1),
    )
    form = Affine(0, ())
    for part, factor in parts:
        form = form.plus(affine(part, ranges), factor)
    assert rejoined(form, ranges) == affine(whole, ranges)
    divided = affine(binary("floordiv", binary("mod", m, integer(a * b)), integer(b)), ranges)
    for value in range(extent):
        assert evaluate(divided.to_expr(), {"m": value}) == value % (a * b) // b


@SOME
@given(st.integers(1, 6), st.integers(-20, 20), st.integers(0, 8))
def test_within_one_turn_of_the_divisor_a_quotient_is_known(d: int, low: int, extent: int) -> None:
    ranges, x = {"x": (low, low + extent)}, index("x")
    quotient = affine(binary("floordiv", x, integer(d)), ranges)
    rest = affine(binary("mod", x, integer(d)), ranges)
    for value in range(low, low + extent + 1):
        assert evaluate(quotient.to_expr(), {"x": value}) == value // d
        assert evaluate(rest.to_expr(), {"x": value}) == value % d
    if low // d == (low + extent) // d:
        assert quotient == Affine(low // d, ())
        assert rest.plus(Affine(low // d * d, ())) == affine(x, ranges)


def test_range_of_a_division_by_a_variable() -> None:
    ranges = {"i": (0, 20), "n": (2, 5), "below": (-3, 20)}
    i, n, below = index("i"), index("n"), index("below")
    assert expr_range(binary("mod", i, n), ranges) == (0, 4)
    assert expr_range(binary("floordiv", i, n), ranges) == (0, 20)
    for op in ("mod", "floordiv"):
        for left, right in ((below, n), (i, below)):
            low, high = expr_range(binary(op, left, right), ranges)
            assert low < -3 and high > 20  # nothing is known
