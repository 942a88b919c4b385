"""PlanRegion: a part of a plan, and what the model gains by it alone: told in a line, as JSON.

{"decisions": [{"decide": "layout", "value": "conv3", "block": 16}, ...],
 "described": "NCHW16c from conv3 to add7", "rival": "plain", "expected": 0.05,
 "speedup": 1.04, "low": 1.02, "high": 1.06}

    NCHW16c from conv3 to add7: 4 % faster than plain, confirmed (2 to 6 %)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.decisions.graph_plan import GraphPlan
from tunefarm.measure.unchanged import is_unchanged

NOT_MEASURED = "not measured alone"
_NAMED = 3
"""Regions that were not measured and are told one by one."""


@dataclass(frozen=True, slots=True)
class PlanRegion:
    """Decisions of a plan that belong together: `speedup` is the model's time under the plan
    without them over its time with them, from whole models run in turn, which `low` and `high`
    bound with 95 % confidence; None where that was not measured.

    `described` names them in a few words, `rival` what they were or would be compared with.
    `expected` is the share of the model's time that their kernels alone should save.
    """

    plan: GraphPlan
    described: str
    rival: str = "without it"
    expected: float = 0.0
    speedup: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether whole models have met with and without it."""
        return None not in (self.speedup, self.low, self.high)

    @property
    def gains(self) -> bool:
        """Whether the model is faster with it beyond doubt."""
        return self.low is not None and self.low > 1.0

    def measured(self, speedup: float, low: float, high: float) -> PlanRegion:
        """The region with what whole models have shown."""
        return replace(self, speedup=speedup, low=low, high=high)

    def to_json(self) -> dict[str, Any]:
        """The region as JSON values."""
        return {
            "decisions": self.plan.to_json(),
            "described": self.described,
            "rival": self.rival,
            "expected": self.expected,
            "speedup": self.speedup,
            "low": self.low,
            "high": self.high,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PlanRegion:
        """The inverse of `to_json`. Raises PlanError for other JSON."""
        try:
            return PlanRegion(
                GraphPlan.from_json(data["decisions"]),
                str(data["described"]),
                str(data["rival"]),
                float(data["expected"]),
                figure(data["speedup"]),
                figure(data["low"]),
                figure(data["high"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"no region of a plan: {error!r:.80}") from error

    def __str__(self) -> str:
        return f"{self.described}: {self.gain}"

    @property
    def gain(self) -> str:
        """What it gains, in words; what its interval does not exclude is no gain and no loss."""
        if self.speedup is None or self.low is None or self.high is None:
            return NOT_MEASURED
        if is_unchanged(self.low, self.high):
            return f"unchanged: the same build as {self.rival}"
        bounds = f"({_percent(self.low)} to {_percent(self.high)} %)"
        if self.low <= 1.0 <= self.high:
            return f"no difference found to {self.rival} {bounds}"
        word = "faster" if self.low > 1.0 else "slower"
        change = abs(100.0 * (self.speedup - 1.0))
        digits = 1 if change < 1.0 else 0
        return f"{change:.{digits}f} % {word} than {self.rival}, confirmed {bounds}"


def region_lines(regions: Sequence[PlanRegion]) -> list[str]:
    """A line for each, but for most of those that were not measured: those are counted."""
    measured = [str(region) for region in regions if region.is_measured]
    others = [str(region) for region in regions if not region.is_measured]
    rest = len(others) - _NAMED
    more = [f"{rest} more {'region' if rest == 1 else 'regions'}: {NOT_MEASURED}"]
    return [*measured, *others[:_NAMED], *(more if rest > 0 else ())]


def figure(value: Any) -> float | None:
    """A number of JSON, or None. Raises TypeError or ValueError for anything else."""
    return None if value is None else float(value)


def _percent(speedup: float) -> str:
    change = 100.0 * (speedup - 1.0)
    text = f"{change:.{0 if abs(change) >= 9.95 else 1}f}"
    return "0" if float(text) == 0.0 else text
