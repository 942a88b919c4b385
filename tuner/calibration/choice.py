"""What was chosen for a model: points of speed and error, one of which is built.

It is kept in the database as JSON, and has all that a build needs: neither the calibration data nor
a measurement is asked for again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tunefarm.compiler.errors import DatabaseError, SettingsError
from tunefarm.compiler.types.precision import Calibration, Precision, PrecisionPlan
from tunefarm.configs.json_values import from_json, to_json

RELATIVE_ERROR = "relative error"


@dataclass(frozen=True, slots=True)
class ChoicePoint:
    """A plan: precisions of contractions by identity (the others are f32), and what it costs.

    `ratio` is the model's time over that in f32, with its 95 % interval, from runs in turn; without
    an interval it is what single contractions promise. `error` is that over the data by which was
    searched, `checked` that over data by which points were refused, `held_out` that over data which
    had no part in the choice; in older records there is no such data, and the latter refused.
    """

    precisions: Mapping[str, Precision]
    ratio: float
    error: float
    held_out: float | None = None
    low: float | None = None
    high: float | None = None
    checked: float | None = None

    @property
    def worst(self) -> float:
        """The larger one of the errors by which is chosen."""
        other = self.held_out if self.checked is None else self.checked
        return max(self.error, other or 0.0)

    @property
    def counts(self) -> dict[Precision, int]:
        """How many contractions are in each precision below f32."""
        kinds = list(self.precisions.values())
        return {kind: kinds.count(kind) for kind in Precision if kind in kinds}


@dataclass(frozen=True, slots=True)
class ContractionCost:
    """One contraction: seconds in each precision, and what it alone costs of the outputs."""

    identity: str
    label: str
    seconds: Mapping[Precision, float]
    errors: Mapping[Precision, float]


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """All points, from the slowest, f32, to the fastest, and the number of the `chosen` one.

    `measure` says what errors are: relative errors of the outputs, or losses of a metric. `budget`
    is the most that was allowed.
    """

    measure: str
    budget: float
    chosen: int
    points: tuple[ChoicePoint, ...]
    contractions: tuple[ContractionCost, ...] = ()
    calibration: Calibration | None = None

    def plan(self, number: int | None = None) -> PrecisionPlan:
        """The plan of a point, of the chosen one if None. Raises SettingsError for no number."""
        number = self.chosen if number is None else number
        if not 0 <= number < len(self.points):
            raise SettingsError(
                f"there is no point {number}", hint=f"points are 0 to {len(self.points) - 1}"
            )
        return PrecisionPlan(dict(self.points[number].precisions), self.calibration)

    def within(self, error: float) -> int:
        """The number of the fastest point with an error of at most this."""
        numbers = [n for n, point in enumerate(self.points) if point.worst <= error]
        if not numbers:
            nearest = min(point.worst for point in self.points)
            raise SettingsError(
                f"no point has an error of {error:g} or less", hint=f"the nearest has {nearest:g}"
            )
        return min(numbers, key=lambda number: self.points[number].ratio)

    def to_json(self) -> dict[str, Any]:
        """The choice as JSON values."""
        bounded = math.isfinite(self.budget)
        values = to_json(replace(self, calibration=None, budget=self.budget if bounded else 0.0))
        calibration = None if self.calibration is None else self.calibration.to_json()
        return {
            **values,
            "budget": self.budget if bounded else None,
            "calibration": calibration,
        }

    @staticmethod
    def from_json(value: Any) -> PrecisionChoice:
        """The inverse of `to_json`. Raises DatabaseError for other JSON."""
        try:
            given, budget = value["calibration"], value["budget"]
            plain = {**value, "calibration": None, "budget": 0.0 if budget is None else budget}
            choice = replace(
                from_json(PrecisionChoice, plain),
                budget=math.inf if budget is None else float(budget),
                calibration=None if given is None else Calibration.from_json(given),
            )
            choice.plan()
        except (KeyError, TypeError, ValueError, AttributeError, SettingsError) as error:
            raise DatabaseError(
                f"the record of what was chosen for the model is none: {error}",
                hint="tune db check tells more; tune the model again",
            ) from error
        return choice
