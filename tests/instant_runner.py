"""A runner of tests, which answers at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status


class InstantRunner(ABC):
    """Answers as a class of its own says, and keeps the requests."""

    def __init__(self, capacity: int = 4) -> None:
        self.capacity = capacity
        self.capacities = {"": capacity}
        self.requests: list[MeasureRequest] = []
        self._ready: list[MeasureResult] = []

    @abstractmethod
    def answer(self, request: MeasureRequest) -> MeasureResult: ...

    @property
    def pending(self) -> int:
        return len(self._ready)

    def submit(self, request: MeasureRequest) -> None:
        self.requests.append(request)
        self._ready.append(self.answer(request))

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        self._ready = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def measured(
    request: MeasureRequest, seconds: Sequence[float], rounds: int | None = None
) -> MeasureResult:
    """The result of schedules that take so long in each of the rounds, those asked for if None."""
    rounds = int(request.options.get("samples", 3)) if rounds is None else rounds
    samples, *rivals = ((each,) * rounds for each in seconds)
    return MeasureResult(request.request_id, Status.OK, samples, rivals=tuple(rivals))
