"""A simulated core: measures schedules whose times are known, on a clock that may wander.

Rounds, slices, early ends and verdicts are those of the real worker, whose very code it calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from tunefarm.measure.measurement import MeasureResult
from tunefarm.measure.worker.answer import answer_of
from tunefarm.measure.worker.timer import TimingOptions, calibrate, time_in_turn

PREPARE_SECONDS = 0.04  # building a request's schedules, their data, and what else is no timing


class Clock(Protocol):
    """How fast a simulated core works, and when."""

    def after(self, start: float, work: float) -> float:
        """When work is done that takes `work` seconds on a still core and begins at `start`."""
        ...


class SimulatedCore:
    """Runs one thing after the other; `now` is its simulated time, in seconds."""

    def __init__(self, clock: Clock) -> None:
        self.now = 0.0
        self._clock = clock

    def run(self, call_seconds: float, calls: int) -> float:
        """Seconds that so many calls take now, each of which takes so long on a still core."""
        begin = self.now
        self.now = self._clock.after(begin, calls * call_seconds)
        return self.now - begin

    def measure(
        self, call_seconds: Sequence[float], options: TimingOptions, seed: int
    ) -> MeasureResult:
        """Check and time schedules that take so many seconds on a still core."""
        self.now += PREPARE_SECONDS
        start = self.now
        runs = [partial(self.run, seconds) for seconds in call_seconds]
        estimates = [run(1) for run in runs]
        checked = self.now
        warm = [
            calibrate(run, options, estimate) for run, estimate in zip(runs, estimates, strict=True)
        ]
        timing = time_in_turn(runs, options, warm, seed, clock=lambda: self.now)
        result = answer_of(timing, options, {"calls": timing.calls[0]})
        return replace(
            result,
            build_seconds=PREPARE_SECONDS,
            check_seconds=checked - start,
            run_seconds=self.now - checked,
        )
