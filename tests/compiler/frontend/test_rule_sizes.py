"""Sizes as type rules see them: numbers in sums and products, an error where they must be known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefarm.compiler.frontend.function_binding import RuleSize, UnknownSizeError, dimension_of
from tunefarm.compiler.types.sizes import Size, Symbol, value_of

B, N = Symbol("b", 2, 8), Symbol("n", 1, 16)

RULES: Sequence[Callable[[Any, Any], Any]] = (
    lambda b, n: b + n,
    lambda b, n: 3 + b - 1,
    lambda b, n: 20 - n,
    lambda b, n: 2 * b * n,
    lambda b, n: math.prod((b, 3, n)),
    lambda b, n: sum((b, n, 4)),
    lambda b, n: np.prod((b, n)),
    lambda b, n: np.int64(3) * b + np.int64(1),
    lambda b, n: (n + 1) // 2,
    lambda b, n: -(-n // 2),
    lambda b, n: -(n // -3),
    lambda b, n: n - n // 2,
    lambda b, n: 17 // b,
    lambda b, n: n % b + 17 % n,
    lambda b, n: 6 + n % -5,
    lambda b, n: sum(divmod(n, 4)) + divmod(9, b)[1],
    lambda b, n: b**2 + n**0,
    lambda b, n: n if b > 1 else 3,  # bounds tell
    lambda b, n: n if b != 1 and b >= 2 and not b <= 1 and b > 1 else 3,
    lambda b, n: n if b == b and b + 1 == 1 + b and b else 3,
    lambda b, n: b + n - b,
)


def size(symbol: Symbol) -> RuleSize:
    dimension = Symbol.of(symbol.name, symbol.low, symbol.high)
    assert isinstance(dimension, Size)
    return RuleSize(dimension)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RULES), st.integers(2, 8), st.integers(1, 16))
def test_a_rule_for_numbers_says_the_same_of_symbols(
    rule: Callable[[Any, Any], Any], b: int, n: int
) -> None:
    found = dimension_of(rule(size(B), size(N)))
    assert value_of(found, {"b": b, "n": n}) == rule(b, n)


@pytest.mark.parametrize(
    ("rule", "question"),
    [
        (lambda b, n: int(b), "which number b is"),
        (lambda b, n: range(b), "which number b is"),
        (lambda b, n: [0] * b, "which number b is"),
        (lambda b, n: np.broadcast_shapes((b,), (1,)), "which number b is"),
        (lambda b, n: f"{b:d}" if math.sqrt(b) else 0, "which number b is"),
        (lambda b, n: b == 4, "whether b is 4"),
        (lambda b, n: n != 1, "whether n is 1"),
        (lambda b, n: b == n, "whether b is n"),
        (lambda b, n: max(b, n), "whether n > b"),
        (lambda b, n: b < 5, "whether b < 5"),
        (lambda b, n: b <= 5, "whether b <= 5"),
        (lambda b, n: bool(n - 1), r"whether n \+ -1 is 0"),
        (lambda b, n: b / 2, "what b / 2 is"),
        (lambda b, n: b ** n, r"what b \*\* n is"),
        (lambda b, n: b // (n - 1), r"that the divisor n \+ -1 is not less than 1"),
    ],
)  # fmt: skip
def test_what_only_a_number_has_is_asked_in_vain(
    rule: Callable[[Any, Any], Any], question: str
) -> None:
    with pytest.raises(UnknownSizeError, match=f"^{question}"):
        rule(size(B), size(N))


@pytest.mark.parametrize(
    ("given", "error", "reason"),
    [
        (2.5, TypeError, "integer"),
        (None, TypeError, "integer"),
        (-1, ValueError, "may be less than 0: -1"),
        (size(N) - 2, ValueError, r"may be less than 0: n \+ -2"),
    ],
)
def test_what_is_no_size_is_refused(given: object, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        dimension_of(given)


def test_division_by_zero_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        _ = size(N) // 0
