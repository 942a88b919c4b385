"""How much samples scatter: the relative median absolute deviation."""

from __future__ import annotations

import pytest

from measure.worker.stability import is_unstable, relative_mad


@pytest.mark.parametrize(
    ("samples", "scatter"),
    [
        ([], 0.0),
        ([2.0], 0.0),
        ([1.0, 2.0, 3.0], 0.5),
        ([1.0, 1.0, 1.0, 50.0], 0.0),  # one interrupted sample does not count
        ([0.0, 0.0], 0.0),
    ],
)
def test_scatter_is_the_median_deviation_over_the_median(
    samples: list[float], scatter: float
) -> None:
    assert relative_mad(samples) == scatter


def test_what_scatters_more_than_the_limit_is_unstable() -> None:
    assert is_unstable([1.0, 2.0, 3.0], 0.4)
    assert not is_unstable([1.0, 2.0, 3.0], 0.5)
