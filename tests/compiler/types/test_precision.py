"""Plans and calibrations as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.types.precision import Calibration, Precision, PrecisionPlan

RANGES = Calibration("mse", 4, "ab", {"v": (-1.0, 2.5)})


def test_plan_and_calibration_come_back_as_they_were() -> None:
    plan = PrecisionPlan({"a": Precision.INT8, "b": Precision.BF16}, RANGES)
    assert PrecisionPlan.from_json(plan.to_json()) == plan
    assert Calibration.from_json(RANGES.to_json()) == RANGES


def test_plans_that_lower_alike_have_one_digest() -> None:
    plain = PrecisionPlan({"a": Precision.BF16})
    assert plain.digest == PrecisionPlan({"b": Precision.F32, "a": Precision.BF16}, RANGES).digest
    assert plain.digest != PrecisionPlan({"a": Precision.INT8}, RANGES).digest
    assert plain.of("a") is Precision.BF16
    assert plain.of("nobody") is Precision.F32


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"precisions": {"a": "bf17"}, "calibration": None},
        {"precisions": [], "calibration": None},
        {"precisions": {}, "calibration": {"ranges": 3}},
        {"precisions": {}, "calibration": {**RANGES.to_json(), "ranges": {"v": [1]}}},
        {"precisions": {}, "calibration": {**RANGES.to_json(), "ranges": {"v": [2, 1]}}},
        {"precisions": {}, "calibration": {**RANGES.to_json(), "ranges": {"v": ["nan", 1]}}},
    ],
)
def test_other_json_is_refused(value: Any) -> None:
    with pytest.raises(SettingsError):
        PrecisionPlan.from_json(value)
