"""What was chosen: as a record, and its points."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tunefarm.compiler.errors import DatabaseError, SettingsError
from tunefarm.compiler.types.precision import Calibration, Precision
from tunefarm.db.records import compact_json
from tunefarm.tuner.calibration.choice import ChoicePoint, ContractionCost, PrecisionChoice

RANGES = Calibration("minmax", 3, "ab", {"v": (0.0, 1.5)})
CHOICE = PrecisionChoice(
    measure="relative error",
    budget=0.01,
    chosen=1,
    points=(
        ChoicePoint({}, 1.0, 0.0, 0.0, 1.0, 1.0),
        ChoicePoint({"a": Precision.BF16}, 0.6, 0.004, 0.006, 0.58, 0.62),
        ChoicePoint({"a": Precision.INT8, "b": Precision.INT8}, 0.3, 0.02),
    ),
    contractions=(
        ContractionCost(
            "a",
            "conv1",
            {Precision.F32: 1e-3, Precision.BF16: 5e-4},
            {Precision.BF16: 0.004},
        ),
    ),
    calibration=RANGES,
)


def test_choice_comes_back_from_its_record() -> None:
    value = CHOICE.to_json()
    compact_json(value)  # finite numbers only
    assert PrecisionChoice.from_json(value) == CHOICE


def test_points_are_found_by_number_and_by_error() -> None:
    assert CHOICE.plan().precisions == {"a": Precision.BF16}
    assert CHOICE.plan(2).calibration == RANGES
    assert [CHOICE.within(error) for error in (0.0, 0.005, 0.006, 1.0)] == [0, 0, 1, 2]
    with pytest.raises(SettingsError, match=r"there is no point 3 .points are 0 to 2"):
        CHOICE.plan(3)


def test_the_nearest_point_is_named_where_none_is_within() -> None:
    lowered = PrecisionChoice("relative error", 0.1, 0, CHOICE.points[1:])
    with pytest.raises(SettingsError, match=r"error of 0\.001 or less .the nearest has 0\.006"):
        lowered.within(0.001)
    assert PrecisionChoice("x", math.inf, 0, CHOICE.points).to_json()["budget"] is None


@pytest.mark.parametrize(
    "change", [{"points": []}, {"chosen": 9}, {"points": [{}]}, {"calibration": 3}, {"budget": "x"}]
)
def test_a_record_that_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DatabaseError, match="what was chosen for the model is none"):
        PrecisionChoice.from_json({**CHOICE.to_json(), **change})
