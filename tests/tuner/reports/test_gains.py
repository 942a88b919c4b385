"""Only what is beyond doubt is told as a gain or a loss."""

from __future__ import annotations

import math

import pytest

from tunefarm.tuner.reports.gains import gain, gain_class


@pytest.mark.parametrize(
    ("ratio", "low", "high", "told", "kind"),
    [
        (0.5, 0.4, 0.8, "2.00x (1.25x to 2.50x)", "better"),
        (2.0, 1.25, 2.5, "0.50x (0.40x to 0.80x)", "worse"),
        (1.05, 0.9, 1.25, "no difference found (0.80x to 1.11x)", "same"),
        (0.9, 0.8, 1.0, "no difference found (1.00x to 1.25x)", "same"),
        (1.0, 1.0, 1.0, "unchanged", "same"),
        (math.nan, math.nan, math.nan, "-", "same"),
        (1.0, 0.0, math.inf, "-", "same"),
        (1.0, 2.0, 3.0, "-", "worse"),
    ],
)
def test_gains_in_words(ratio: float, low: float, high: float, told: str, kind: str) -> None:
    assert gain(ratio, low, high) == told
    assert gain_class(low, high) == kind
