"""Options of calibration and errors that make no sense are refused, each in one line."""

from __future__ import annotations

from typing import Any

import pytest

from tunefarm.configs.errors import SettingsError
from tunefarm.tuner.calibration.options import PrecisionOptions

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("default", {"calibration": "a.npz"}, "--calibration is for --precision int8 and auto"),
    ("int8", {"max_error": 0.1}, "are for --precision auto"),
    ("int8", {"calibration_method": "mse"}, "needs --calibration"),
    ("auto", {"calibration": "a", "calibration_method": "best"}, "no method 'best'"),
    ("auto", {"max_error": 0.1, "metric": "m.py:f"}, "give one"),
    ("auto", {"max_error": 0.1, "point": 1}, "give one"),
    ("auto", {"max_loss": 0.1}, "need --metric"),
    ("auto", {"labels": "l.npy"}, "need --metric"),
    ("auto", {"max_error": -0.1}, "--max-error -0.1: it must be a number from 0 on"),
    ("auto", {"max_error": float("nan")}, "--max-error nan"),
    ("auto", {"metric": "m.py:f", "max_loss": float("inf")}, "--max-loss inf"),
]


@pytest.mark.parametrize(("numerics", "given", "reason"), BAD)
def test_options_that_do_not_fit_are_refused(
    numerics: str, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        PrecisionOptions(**given).check(numerics)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "auto needs the error that is allowed"),
        ({"metric": "m.py:f", "calibration": "a"}, "needs --max-loss"),
        ({"metric": "m.py:f", "max_loss": 0.1}, "needs --calibration"),
    ],
)
def test_a_search_needs_a_budget(given: dict[str, Any], reason: str) -> None:
    options = PrecisionOptions(**given)
    options.check("auto")
    with pytest.raises(SettingsError, match=reason):
        options.check_search()


def test_options_that_fit_have_a_budget_and_files() -> None:
    options = PrecisionOptions("a.npz", metric="m.py:f", labels="l.npy", max_loss=0.02)
    options.check("auto")
    options.check_search()
    assert options.budget == 0.02
    assert options.files() == ["a.npz", "l.npy", "m.py"]
    assert str(options.method()) == "minmax"
