"""Runner: takes requests, answers each with exactly one result. The protocol of all runners."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from measure.measurement import MeasureRequest, MeasureResult


@runtime_checkable
class Runner(Protocol):
    """Measures candidates. A candidate's failure is a result with a status, never an exception.

    Results come in any order; `request_id` says whose they are. All methods are for one thread.
    """

    @property
    def capacity(self) -> int:
        """How many requests may usefully be in flight; more only wait."""

    @property
    def pending(self) -> int:
        """Requests submitted whose results were not yet handed out."""

    def submit(self, request: MeasureRequest) -> None:
        """Take a request in, without waiting for it.

        Raises MeasureError for a request that this runner cannot serve (unknown option, another
        thread count), and after `close`.
        """

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        """The results that are ready, waiting up to `timeout` seconds (None: for ever) for one.

        Empty on timeout, and at once when nothing is pending. Results that were ready before
        `close` can still be taken after it.
        """

    def close(self) -> None:
        """End all workers and drop what is pending. Idempotent, quick, leaves no process behind."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
