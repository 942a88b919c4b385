"""ReplayRunner: answers from recorded results, so that a search runs without hardware.

It hands out the very samples that were recorded or, given a clock, those that a core would have
yielded whose speed wanders like that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self, TypeAlias

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.worker.timer import TimingOptions, answer_of, calibrate, time_in_turn

PREPARE_SECONDS = 0.04  # building a request's schedules, their data, and what else is no timing


class Clock(Protocol):
    """How fast a simulated core works, and when."""

    def after(self, start: float, work: float) -> float:
        """When work is done that takes `work` seconds on a still core and begins at `start`."""
        ...


class SimulatedCore:
    """Measures schedules whose times are known, one after the other, on a clock that may wander;
    `now` is its simulated time, in seconds.

    Rounds, slices, early ends and verdicts are those of the real worker, whose very code it calls.
    """

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


RecordKey: TypeAlias = tuple[str, str]  # workload key, schedule as canonical JSON text


def record_key(workload_key: str, schedule: Iterable[Any]) -> RecordKey:
    """The key under which the result of a schedule (as JSON values) is recorded."""
    return workload_key, json.dumps(list(schedule), sort_keys=True, separators=(",", ":"))


def _as_recorded(found: Sequence[MeasureResult]) -> MeasureResult:
    """What was recorded of a schedule, its rivals' samples with its own."""
    first, *others = found
    if not others:
        return first
    rounds = min(len(one.samples) for one in found)
    rivals = tuple(one.samples[:rounds] for one in others)
    return replace(first, samples=first.samples[:rounds], rivals=rivals)


class ReplayRunner:
    """Hands out recorded results, in the order of submission.

    A schedule without a record is answered with `unknown`: a failure that a search learns from.
    With a `clock`, schedules are measured on a simulated core, on which each takes its recorded
    latency while the clock is still.
    """

    def __init__(
        self,
        recorded: Mapping[RecordKey, MeasureResult],
        *,
        capacity: int = 8,
        unknown: Status = Status.BUILD_ERROR,
        clock: Clock | None = None,
    ) -> None:
        self._recorded = recorded
        self._capacity = capacity
        self._unknown = unknown
        self._core = None if clock is None else SimulatedCore(clock)
        self._ready: list[MeasureResult] = []
        self._closed = False

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def capacities(self) -> Mapping[str, int]:
        return {"": self._capacity}

    @property
    def pending(self) -> int:
        return len(self._ready)

    def submit(self, request: MeasureRequest) -> None:
        if self._closed:
            raise MeasureError("the runner is closed")
        options = TimingOptions.of(request.options)
        found = [self._find(request.workload_key, schedule) for schedule in request.schedules]
        failed = [number for number, one in enumerate(found) if one.status is not Status.OK]
        if failed:
            result = replace(found[failed[0]], culprit=failed[0])
        elif self._core is not None:
            result = self._core.measure([one.latency for one in found], options, request.seed)
        else:
            result = _as_recorded(found)
        self._ready.append(replace(result, request_id=request.request_id))

    def _find(self, workload_key: str, schedule: Iterable[Any]) -> MeasureResult:
        key = record_key(workload_key, schedule)
        text = f"no recorded result of {workload_key} with this schedule: {key[1]}"
        return self._recorded.get(key) or MeasureResult("", self._unknown, error=text)

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
