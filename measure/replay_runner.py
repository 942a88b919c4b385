"""ReplayRunner: answers from recorded results, so that a search runs without hardware."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeAlias

from compiler.errors import MeasureError
from measure.job import MeasureRequest, MeasureResult, Status
from measure.timer import TimingOptions

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
        key = record_key(request.workload_key, request.schedule)
        found = self._recorded.get(key)
        if found is None:
            text = f"no recorded result of {request.workload_key} with this schedule: {key[1]}"
            found = MeasureResult(request.request_id, self._unknown, error=text)
        self._ready.append(replace(found, request_id=request.request_id))

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
