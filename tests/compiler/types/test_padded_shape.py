"""Padded axes: how their factors are joined, taken apart and shared out to other axes."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.types.padded_shape import (
    Factor,
    PaddedShape,
    extent_of,
    joined,
    regrouped,
    reshaped,
    shared_padding,
    split,
    true_shape,
    unpadded_shape,
    whole,
)
from tunefarm.compiler.types.sizes import Dimension, Symbol

N, TWICE = Symbol.of("n", 1, 8), 2 * Symbol.of("m", 1, 4)


@pytest.mark.parametrize(
    ("dims", "shape", "expected"),
    [
        ((((N, 8),), ((6, 6),)), (8, 2, 3), (((N, 8),), ((2, 2),), ((3, 3),))),
        ((((N, 8),), ((2, 2),), ((3, 3),)), (8, 6), (((N, 8),), ((6, 6),))),
        ((((N, 8),), ((6, 6),)), (48,), (((6 * N, 48),),)),
        ((((N, 8),), ((6, 6),)), (16, 3), (((2 * N, 16),), ((3, 3),))),
        ((((TWICE, 8),),), (4, 2), (((TWICE // 2, 4),), ((2, 2),))),
        ((((N, 8),), ((TWICE, 8),)), (64,), (((N, 8), (TWICE, 8)),)),
        ((((N, 8),), ((6, 6),)), (2, 24), None),  # of `n` nobody knows the half
        ((((N, 8),), ((6, 6),)), (5, 8), None),
        ((((N, 8),), ((6, 6),)), (8,), None),
        ((((N, 8),),), (8, 2), None),
    ],
)
def test_factors_are_shared_out_to_the_axes_of_another_shape(
    dims: PaddedShape, shape: tuple[int, ...], expected: PaddedShape | None
) -> None:
    assert regrouped(dims, shape) == expected


@pytest.mark.parametrize(
    ("dims", "shape", "expected", "divisible"),
    [
        ((((N, 8),), ((6, 6),)), (N, 2, 3), (((N, 8),), ((2, 2),), ((3, 3),)), []),
        ((((N, 8),), ((6, 6),)), (6 * N,), (((6 * N, 48),),), []),
        ((((N, 8),), ((6, 6),)), (N, 6, 1), (((N, 8),), ((6, 6),), ((1, 1),)), []),
        ((((N, 8),), ((6, 6),)), (2 * N, 3), (((2 * N, 16),), ((3, 3),)), []),
        ((((1, 4),), ((6, 6),)), (1, 6), (((1, 1),), ((6, 24),)), []),
        ((((TWICE, 8),),), (TWICE // 2, 2), (((TWICE // 2, 4),), ((2, 2),)), []),
        ((((N, 8),),), (N // 2, 2), (((N // 2, 4),), ((2, 2),)), [(N, 2)]),
    ],
)
def test_a_true_shape_says_where_factors_lie_and_what_must_divide(
    dims: PaddedShape, shape: tuple[Dimension, ...], expected: PaddedShape, divisible: list[Factor]
) -> None:
    assert reshaped(dims, shape) == (expected, divisible)


def test_a_shape_of_other_elements_is_none() -> None:
    for shape in ((7,), (N, 4), (N, 6, 2), (N,)):
        assert reshaped((((N, 8),), ((6, 6),)), shape) is None


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.data())
def test_what_is_not_padded_takes_any_shape_of_as_many_elements(
    shape: list[int], data: st.DataObject
) -> None:
    left, other = prod(shape), []
    while left > 1:
        other.append(data.draw(st.sampled_from([d for d in range(2, left + 1) if left % d == 0])))
        left //= other[-1]
    found = regrouped(unpadded_shape(shape), other)
    assert found is not None or not other
    assert true_shape(found or ()) == tuple(other)


def test_whole_factors_are_joined_to_those_before_and_padded_ones_are_not() -> None:
    assert joined([(N, 8), (1, 1), (6, 6), (2, 2)]) == ((12 * N, 96),)
    assert joined([(2, 2), (N, 8)]) == ((2, 2), (N, 8))
    assert joined([(1, 1)]) == whole(1)


@pytest.mark.parametrize(
    ("factor", "inner", "outer"),
    [((6, 6), 3, (2, 2)), ((6, 6), 4, None), ((TWICE, 8), 2, (TWICE // 2, 4)), ((N, 8), 2, None)],
)
def test_a_factor_is_split_where_its_true_size_is(
    factor: tuple[int, int], inner: int, outer: tuple[int, int] | None
) -> None:
    assert split(factor, inner) == outer


def test_views_share_the_padding_that_both_have() -> None:
    padded, other = ((N, 8),), ((TWICE, 8),)
    assert shared_padding((padded, whole(3)), (padded, whole(3))) == (padded, whole(3))
    assert shared_padding((padded, padded), (padded, other)) == (padded, whole(8))
    assert shared_padding((padded,), (other,)) is None
    assert shared_padding((padded,), (whole(4), whole(2))) is None
    assert extent_of(padded) == 8
