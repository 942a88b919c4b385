"""Sizes: arithmetic is that of numbers, whatever the symbols are; equal ones are equal objects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.types.sizes import (
    Dimension,
    Size,
    Symbol,
    bounds_of,
    divide,
    greater,
    product_of,
    quotient,
    remainder,
    smaller,
    value_of,
)

BATCH, LENGTH, START = (
    Symbol.of("batch", 1, 8),
    Symbol.of("length", 1, 512),
    Symbol.of("start", 0, 9),
)
Numbers = tuple[Dimension, Callable[[dict[str, int]], int]]

OPERATIONS: dict[str, Callable[[Dimension, Dimension], Dimension]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": smaller,
    "max": greater,
}


@st.composite
def expressions(draw: st.DrawFn) -> Numbers:
    """A size, and the same computed of numbers."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        number = draw(st.integers(-4, 20))
        return number, lambda symbols: number
    if kind == 1:
        size = draw(st.sampled_from((BATCH, LENGTH, START)))
        return size, lambda symbols: value_of(size, symbols)
    left, compute_left = draw(expressions())
    if kind == 2:
        divisor = draw(st.integers(1, 9))
        if draw(st.booleans()):  # filled up, or cut, to a number
            name, factor = draw(st.sampled_from(("min", "max"))), draw(st.integers(-2, 2))
            on_numbers = OPERATIONS[name]
            return (
                left + factor * on_numbers(8 * divisor - left, 0),
                lambda symbols: (
                    compute_left(symbols)
                    + factor * value_of(on_numbers(8 * divisor - compute_left(symbols), 0), {})
                ),
            )
        if draw(st.booleans()):  # filled up, or down, to a multiple
            factor = draw(st.integers(-2, 2))
            return (
                left + factor * remainder(factor * left, divisor),
                lambda symbols: (
                    compute_left(symbols) + factor * (factor * compute_left(symbols) % divisor)
                ),
            )
        if draw(st.booleans()):
            return divide(left, divisor), lambda symbols: compute_left(symbols) // divisor
        return remainder(left, divisor), lambda symbols: compute_left(symbols) % divisor
    right, compute_right = draw(expressions())
    name = draw(st.sampled_from(tuple(OPERATIONS)))
    on_numbers = OPERATIONS[name]
    return on_numbers(left, right), lambda symbols: value_of(
        on_numbers(compute_left(symbols), compute_right(symbols)), {}
    )


@given(expressions(), st.integers(1, 8), st.integers(1, 512), st.integers(0, 9))
def test_sizes_compute_as_numbers_do_and_stay_within_their_bounds(
    drawn: Numbers, batch: int, length: int, start: int
) -> None:
    size, compute = drawn
    symbols = {"batch": batch, "length": length, "start": start}
    value = compute(symbols)
    assert value_of(size, symbols) == value
    low, high = bounds_of(size)
    assert low <= value <= high


@given(expressions())
def test_bounds_of_one_symbol_are_reached(drawn: Numbers) -> None:
    size, _ = drawn
    if isinstance(size, Size) and len(size.symbols) == 1:
        (symbol,) = size.symbols
        values = {size.value({symbol.name: n}) for n in range(symbol.low, symbol.high + 1)}
        assert bounds_of(size) == (min(values), max(values))


def test_a_size_keeps_the_bounds_that_its_windows_need() -> None:
    """Rows are filled up to a multiple of 6, of which the blocks of a dilated convolution are cut:
    its size is 13 at least, and 4 summands with bounds of their own may cancel to less than 3."""
    rows = Symbol.of("rows", 128, 512)
    half, twelfth = (rows + 1) // 2, (rows + 1) // 12
    cut = 6 * (greater(half - 6 * twelfth - 6, 0) // 6)
    added = 6 * (greater(6 * twelfth - half + 6, 0) // 6)
    size = greater(cut - added + 6 * twelfth + 18, 0) // 6
    assert bounds_of(size) == (13, 45)
    assert greater(size, 3) == size


def test_equal_expressions_are_equal() -> None:
    assert 2 * (BATCH + 1) == BATCH + BATCH + 2
    assert BATCH * LENGTH == LENGTH * BATCH
    assert hash(BATCH * LENGTH) == hash(LENGTH * BATCH)
    assert LENGTH - LENGTH == 0
    assert BATCH * LENGTH * 64 // (LENGTH * 4) == 16 * BATCH
    assert remainder(12 * BATCH, 4) == 0
    assert smaller(LENGTH, 600) == LENGTH
    assert ((LENGTH // 5) - 2) // 2 == (LENGTH - 10) // 10
    assert (4 * BATCH + LENGTH + 7) // 4 == BATCH + (LENGTH + 3) // 4 + 1
    assert Symbol.of("fixed", 3, 3) == 3
    assert product_of((2, BATCH, 3)) == 6 * BATCH


def test_what_is_filled_up_is_a_multiple() -> None:
    """As windows fill up planes; (7 - s % 7) % 7 is what tools write for -s % 7."""
    more = remainder(7 - remainder(LENGTH, 7), 7)
    assert more == remainder(-LENGTH, 7)
    assert (LENGTH + more) // 7 * 7 == LENGTH + more == 7 * -(-LENGTH // 7)
    assert remainder(LENGTH + more, 7) == 0
    assert bounds_of(LENGTH + more) == (7, 518)
    assert LENGTH + remainder(LENGTH, 2) == LENGTH + remainder(-LENGTH, 2)
    assert LENGTH - remainder(LENGTH, 4) == LENGTH // 4 * 4
    assert more == -(-LENGTH // 7) * 7 - LENGTH
    assert BATCH + remainder(LENGTH, 4) == LENGTH + BATCH - LENGTH // 4 * 4
    assert remainder(remainder(LENGTH, 8) + 12 * BATCH, 4) == remainder(LENGTH, 4)


def test_what_is_filled_up_to_a_minimum_is_the_greater() -> None:
    """As audio is padded to a window first, and then to a multiple of the step."""
    more = greater(256 - LENGTH, 0)
    assert LENGTH + more == greater(LENGTH, 256)
    assert bounds_of(LENGTH + more) == (256, 512)
    assert BATCH - LENGTH - more == BATCH - greater(LENGTH, 256)
    assert LENGTH + more - more == greater(LENGTH, 256) - more == LENGTH
    assert LENGTH + smaller(256 - LENGTH, 0) == smaller(LENGTH, 256)
    assert 3 * LENGTH + greater(3 * BATCH - 3 * LENGTH, 6) == greater(3 * LENGTH + 6, 3 * BATCH)
    assert LENGTH - smaller(LENGTH, BATCH) + smaller(LENGTH, BATCH) == LENGTH
    assert greater(LENGTH, BATCH) - greater(LENGTH - 7, BATCH - 7) == 7
    assert bounds_of(more) == (0, 255)
    whole = LENGTH + more + remainder(-(LENGTH + more), 256) + 1024
    assert remainder(whole, 256) == 0
    assert remainder(LENGTH + more + 1279 - remainder(LENGTH + more + 255, 256), 256) == 0


@given(st.lists(st.integers(-3, 3), min_size=4, max_size=4), st.integers(-2, 2))
def test_a_product_divided_by_a_factor_is_the_other(factors: list[int], number: int) -> None:
    rows, columns = divide(LENGTH - 1, 2) + 1, START + 1
    a, b, c, d = factors
    one = a * rows * columns + b * rows + c * BATCH + d
    other = rows * BATCH + number
    assert quotient(one * other, other) == one
    assert quotient(one * other + 1, other) is None
    assert quotient(BATCH * (rows * columns), rows * columns) == BATCH


def test_numbers_are_divided_where_nothing_is_left() -> None:
    assert quotient(6, 2) == 3
    assert quotient(7, 2) is None
    assert quotient(6, 0) is None and quotient(LENGTH, 0) is None


def test_a_size_says_what_it_is() -> None:
    assert str(2 * BATCH * LENGTH + 1) == "2*batch*length + 1"
    assert isinstance(BATCH, Size)
    assert BATCH.symbol == Symbol("batch", 1, 8)
    doubled = 2 * BATCH
    assert isinstance(doubled, Size)
    assert doubled.symbol is None


@pytest.mark.parametrize("low, high", [(5, 2), (-1, 4), (-2, -2)])
def test_contradictory_bounds_are_refused(low: int, high: int) -> None:
    with pytest.raises(ShapeError, match=f"sizes from {low} to {high}"):
        Symbol.of("batch", low, high)


def test_what_needs_a_number_is_told_that_there_is_none() -> None:
    with pytest.raises(ShapeError, match="length is not known before run time"):
        range(LENGTH)
    with pytest.raises(ShapeError, match="whether the size start is 0"):
        bool(START)
    with pytest.raises(ShapeError, match="divided by start, which may be less than 1"):
        divide(LENGTH, START)
