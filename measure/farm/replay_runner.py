"""ReplayRunner: answers from recorded results, so that a search runs without hardware."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self, TypeAlias

from compiler.errors import MeasureError
from measure.measurement import MeasureRequest, MeasureResult, Status
from measure.worker.timer import TimingOptions

RecordKey: TypeAlias = tuple[str, str]  # workload key, schedule as canonical JSON text


def record_key(workload_key: str, schedule: Iterable[Any]) -> RecordKey:
    """The key under which the result of a schedule (as JSON values) is recorded."""
    return workload_key, json.dumps(list(schedule), sort_keys=True, separators=(",", ":"))


class ReplayRunner:
    """Hands out recorded results, in the order of submission.

    A schedule without a record is answered with `unknown`: a failure that a search learns from.
    """

    def __init__(
        self,
        recorded: Mapping[RecordKey, MeasureResult],
        *,
        capacity: int = 8,
        unknown: Status = Status.BUILD_ERROR,
    ) -> None:
        self._recorded = recorded
        self._capacity = capacity
        self._unknown = unknown
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
        TimingOptions.of(request.options)
        found = [self._find(request.workload_key, schedule) for schedule in request.schedules]
        result = found[0]
        for number, one in enumerate(found):
            if one.status is not Status.OK:
                result = replace(one, culprit=number)
                break
        else:
            rounds = min(len(one.samples) for one in found)
            if request.rivals:
                taken = tuple(one.samples[:rounds] for one in found)
                result = replace(result, samples=taken[0], rivals=taken[1:])
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
