"""ReplayRunner: answers from recorded results, so that a search runs without hardware.

It hands out the very samples that were recorded or, given a clock, those that a core would have
yielded whose speed wanders like that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeAlias

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.simulated_core import Clock, SimulatedCore
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.worker.timer import TimingOptions

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
