"""What was chosen for a model: points of speed and error, one of which is built.

It is kept in the database as JSON, and has all that a build needs: neither the calibration data nor
a measurement is asked for again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tunefarm.compiler.errors import DatabaseError, SettingsError
from tunefarm.compiler.types.precision import Calibration, Precision, PrecisionPlan

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
        calibration = None if self.calibration is None else self.calibration.to_json()
        return {
            "measure": self.measure,
            "budget": self.budget if math.isfinite(self.budget) else None,
            "chosen": self.chosen,
            "points": [asdict(point) for point in self.points],
            "contractions": [asdict(item) for item in self.contractions],
            "calibration": calibration,
        }

    @staticmethod
    def from_json(value: Any) -> PrecisionChoice:
        """The inverse of `to_json`. Raises DatabaseError for other JSON."""
        try:
            found = value["calibration"]
            points = tuple(_point(point) for point in value["points"])
            budget = value["budget"]
            choice = PrecisionChoice(
                measure=str(value["measure"]),
                budget=math.inf if budget is None else float(budget),
                chosen=int(value["chosen"]),
                points=points,
                contractions=tuple(_cost(item) for item in value["contractions"]),
                calibration=None if found is None else Calibration.from_json(found),
            )
            choice.plan()
        except (KeyError, TypeError, ValueError, AttributeError, SettingsError) as error:
            raise DatabaseError(
                f"the record of what was chosen for the model is none: {error}",
                hint="tune db check tells more; tune the model again",
            ) from error
        return choice


def _point(value: Any) -> ChoicePoint:
    def number(name: str) -> float | None:
        found = value.get(name)
        return None if found is None else float(found)

    return ChoicePoint(
        {str(name): Precision(kind) for name, kind in value["precisions"].items()},
        float(value["ratio"]),
        float(value["error"]),
        number("held_out"),
        number("low"),
        number("high"),
        number("checked"),
    )


def _cost(value: Any) -> ContractionCost:
    def numbers(name: str) -> dict[Precision, float]:
        return {Precision(kind): float(number) for kind, number in value[name].items()}

    return ContractionCost(
        str(value["identity"]), str(value["label"]), numbers("seconds"), numbers("errors")
    )
