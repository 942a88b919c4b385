from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from compiler.expr.bounds import index_range, linear_terms, simplify_division
from compiler.expr.nodes import Expr, add, binary, index, integer, mul, sub
from compiler.kernels.printer import format_expression

EXTENTS = {"a": 5, "b": 7}


def value(expr: Expr, axes: dict[str, int]) -> int:
    """A direct reading of integer expressions."""
    text = format_expression(expr)
    return int(eval(text, {"max": max, "min": min}, dict(axes)))  # noqa: S307


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([index("a"), index("b")]) | st.integers(-20, 20).map(integer)
    small = st.integers(1, 9).map(integer)

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return (
            st.builds(add, inner, inner)
            | st.builds(sub, inner, inner)
            | st.builds(mul, inner, small)
            | st.builds(binary, st.sampled_from(["floordiv", "mod"]), inner, small)
            | st.builds(binary, st.sampled_from(["max", "min"]), inner, inner)
        )

    return st.recursive(leaves, extend, max_leaves=6)


def all_values(expr: Expr) -> list[int]:
    points = itertools.product(range(EXTENTS["a"]), range(EXTENTS["b"]))
    return [value(expr, {"a": a, "b": b}) for a, b in points]


@given(expressions())
def test_range_holds_every_value_and_exact_ends_are_taken(expr: Expr) -> None:
    found = index_range(expr, EXTENTS)
    assert found is not None
    values = all_values(expr)
    assert found.low <= min(values)
    assert max(values) <= found.high
    if found.exact:
        assert (found.low, found.high) == (min(values), max(values))


@given(expressions(), st.integers(1, 20), st.sampled_from(["floordiv", "mod"]))
def test_simplified_division_has_the_same_values(expr: Expr, divisor: int, op: str) -> None:
    plain = binary(op, expr, integer(divisor))
    assert all_values(simplify_division(op, expr, divisor, EXTENTS)) == all_values(plain)


def test_block_arithmetic_disappears() -> None:
    channel = add(mul(index("b"), integer(5)), index("a"))
    assert simplify_division("floordiv", channel, 5, EXTENTS) == index("b")
    assert simplify_division("mod", channel, 5, EXTENTS) == index("a")


def test_terms_over_one_axis_are_merged() -> None:
    expr = sub(add(mul(index("a"), integer(3)), integer(4)), index("a"))
    constant, terms = linear_terms(expr)
    assert (constant, terms) == (4, [(2, index("a"))])
    assert linear_terms(sub(index("a"), index("a"))) == (0, [])


def test_unknown_axes_and_products_of_axes_have_no_range() -> None:
    assert index_range(index("c"), EXTENTS) is None
    assert index_range(mul(index("a"), index("b")), EXTENTS) is None
