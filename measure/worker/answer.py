"""What the timing of schedules answers: their samples, and whether they can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.measure.worker.stability import relative_mad, scatters, spread_of_ratios
from tunefarm.measure.worker.timer import Timing, TimingOptions


def answer_of(timing: Timing, options: TimingOptions, facts: Mapping[str, Any]) -> MeasureResult:
    """OK, or `SCATTERED` where the first schedule is noisy against a quiet second one.

    `facts` are what is known of the machine meanwhile.
    """
    samples, *rivals = timing.samples
    scattered = (
        bool(rivals)
        and not timing.censored
        and scatters(samples, rivals[0], options.unstable_limit)
    )
    error = ""
    if rivals:
        spread = spread_of_ratios(samples, rivals[0])
        facts = {**facts, "spread": round(spread, 5)}
        if scattered:
            error = f"its ratios to a quiet reference spread by {spread:.0%}"
    return MeasureResult(
        "",
        Status.SCATTERED if scattered else Status.OK,
        samples,
        error,
        machine={**facts, "relative_mad": round(relative_mad(samples), 5)},
        censored=timing.censored,
        rivals=tuple(rivals),
    )
