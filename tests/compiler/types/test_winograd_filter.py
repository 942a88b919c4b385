"""The transform of Winograd's filters: exact, and the same wherever a filter lies."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.types.tensor_type import Array
from tunefarm.compiler.types.winograd_filter import FILTERS, transform_taps

EDGES = [(m, m + 2) for m in FILTERS]


def transformed(taps: Array, m: int) -> Array:
    result = np.empty((m + 2, m + 2, *taps.shape[2:]), np.float32)
    transform_taps(taps, m, result)
    return result


@pytest.mark.parametrize(("m", "edge"), EDGES)
def test_taps_are_transformed_as_rational_numbers_are(m: int, edge: int) -> None:
    taps = np.random.default_rng(0).standard_normal((3, 3, 5)).astype(np.float32)
    found, rows = transformed(taps, m), FILTERS[m]
    for i, j, column in np.ndindex(edge, edge, taps.shape[2]):
        exact = sum(
            (
                Fraction(rows[i][a]) * Fraction(rows[j][b]) * Fraction(float(taps[a, b, column]))
                for a in range(3)
                for b in range(3)
            ),
            Fraction(0),
        )
        assert found[i, j, column] == pytest.approx(float(exact), rel=1e-6, abs=1e-7)


@given(data=st.data())
def test_a_filter_is_transformed_to_the_same_bits_wherever_it_lies(data: st.DataObject) -> None:
    m = data.draw(st.sampled_from(list(FILTERS)))
    count = data.draw(st.integers(1, 70))
    taps = np.random.default_rng(count).standard_normal((3, 3, count)).astype(np.float32)
    order = np.array(data.draw(st.permutations(range(count))))
    moved = transformed(np.ascontiguousarray(taps[..., order]), m)
    assert moved.tobytes() == np.ascontiguousarray(transformed(taps, m)[..., order]).tobytes()


@pytest.mark.parametrize(("m", "edge"), EDGES)
def test_zeros_stay_positive_zeros(m: int, edge: int) -> None:
    found = transformed(np.zeros((3, 3, 4), np.float32), m)
    assert found.tobytes() == bytes(4 * edge * edge * 4)
