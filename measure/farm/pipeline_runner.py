"""The part that LocalRunner and RayRunner share: a thread that drives requests through a backend.

The thread owns the dispatcher and waits on one queue of events (submitted, built, timed, a node
that joined or left, closed), so that builders and slots stay busy while the driver thinks, and no
state needs a lock.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from time import monotonic
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from tunefarm.compiler.errors import MeasureError, with_count
from tunefarm.measure.core_locks import TOLD_SECONDS, CoreLocks, wait_text
from tunefarm.measure.farm.dispatch import Action, Dispatcher, Phase
from tunefarm.measure.farm.slots import SlotPlan
from tunefarm.measure.machine import AffinityWatch, cores_lost
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.measure.sandbox.worker_process import (
    CoresLostError,
    WorkerEndedError,
    WorkerLostError,
    WorkerStartError,
)
from tunefarm.measure.worker.build_candidate import BuildResult
from tunefarm.measure.worker.timer import TimingOptions


class SlotLostError(MeasureError):
    """A measuring slot is gone for good, as with its node."""


class Backend(Protocol):
    """Where builds and timed runs happen. A future that fails means that its worker was lost."""

    @property
    def plans(self) -> Sequence[SlotPlan]:
        """The cores of each node."""

    def build(self, node: int, index: int, request: MeasureRequest) -> Future[BuildResult]:
        """Build with builder `index` of a node."""

    def measure(
        self, node: int, index: int, request: MeasureRequest, build: BuildResult
    ) -> Future[MeasureResult]:
        """Check and time in slot `index` of a node; fails with SlotLostError if that is gone."""

    def close(self) -> None:
        """End all workers, whatever they are doing."""


_T = TypeVar("_T")
_Event: TypeAlias = Callable[[], None]
_CLOSE_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_LOG = logging.getLogger("tunefarm.farm")
_BLAMELESS = (WorkerStartError, WorkerEndedError)


class PipelineRunner:
    """A Runner over a Backend."""

    def __init__(
        self,
        backend: Backend,
        threads: int,
        retries: int = 2,
        kinds: Sequence[str] | None = None,
        patience: float = 0.0,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """`kinds` are the keys of the nodes' targets; None: all have the one that is measured.

        `patience`: seconds for which requests wait for a node to join when none is left; with 0 the
        only node is this machine.
        `tell` gets a sentence on what happens to cores.
        """
        self._backend = backend
        self._threads = threads
        self._dispatcher = Dispatcher(backend.plans, retries, kinds)
        self._patience = patience
        self._affinity = AffinityWatch() if patience == 0.0 else None
        self._notify = notify or (lambda _: None)
        self._is_throttled = False
        self._capacities = self._dispatcher.capacities
        self._events: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[MeasureResult | None] = queue.SimpleQueue()
        self._pending = 0
        self._closed = False
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        self._thread = threading.Thread(target=self._serve, name="tunefarm-runner", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        return sum(self._capacities.values())

    @property
    def capacities(self) -> Mapping[str, int]:
        return self._capacities

    @property
    def pending(self) -> int:
        return self._pending

    def change(self, change: Callable[[Dispatcher], None]) -> None:
        """Have the runner's thread change who measures. From any thread."""
        self._events.put(lambda: change(self._dispatcher))

    def fail(self, error: Exception) -> None:
        """End all measuring: `results` raises a MeasureError from now on. From any thread."""

        def raise_error() -> None:
            raise error

        self._events.put(raise_error)

    def watch(self, *looks: Callable[[], None]) -> None:
        """Have a thread look at what may change from outside, again and again until `close`."""

        def watch() -> None:
            while not self._ended.wait(_LOOK_SECONDS):
                for look in looks:
                    try:
                        look()
                    except Exception:  # noqa: BLE001 - what does not answer now is asked again
                        _LOG.debug("a look at what may change has failed", exc_info=True)

        self._watcher = threading.Thread(target=watch, name="tunefarm-watch", daemon=True)
        self._watcher.start()

    def submit(self, request: MeasureRequest) -> None:
        if self._closed:
            raise MeasureError("the runner is closed")
        if request.threads != self._threads:
            raise MeasureError(
                f"the request wants {request.threads} threads, this runner has {self._threads}"
            )
        TimingOptions.of(request.options)  # refuses unknown ones here, not in a worker
        if len(self._capacities) > 1 and request.target not in self._capacities:
            raise MeasureError(f"no node has the target {request.target!r} of the request")
        self._pending += 1
        self._events.put(lambda: self._dispatcher.add(request))

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        ready: list[MeasureResult] = []
        deadline = None if timeout is None else monotonic() + timeout
        while self._pending > len(ready):
            wait = 0.0 if ready or self._closed else _remaining(deadline)
            try:
                result = (
                    self._results.get(timeout=wait) if wait != 0.0 else self._results.get(False)
                )
            except queue.Empty:
                break
            if result is None:
                self._results.put(None)  # for whoever asks again
                if isinstance(self._failure, MeasureError):
                    raise self._failure
                raise MeasureError(f"the runner failed: {self._failure!r}") from self._failure
            ready.append(result)
        self._pending -= len(ready)
        return ready

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._ended.set()
        self._events.put(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._watcher is not None:
            self._watcher.join(_LOOK_SECONDS)
        self._backend.close()
        self._pending = self._results.qsize()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            while (event := self._events.get()) is not None:
                event()
                while not self._events.empty():  # one look at all nodes serves several events
                    if (event := self._events.get()) is None:
                        return
                    event()
                for result in self._dispatcher.take_failed(monotonic(), self._patience):
                    self._results.put(result)
                for action in self._dispatcher.next_actions():
                    self._start(action)
                self._capacities = self._dispatcher.capacities
        except Exception as error:  # noqa: BLE001 - a bug of ours must reach the driver's thread
            self._failure = error
            self._results.put(None)

    def _start(self, action: Action) -> None:
        request = action.job.request
        where, build = (action.node, action.index), action.job.build
        begun: Future[Any] | None = self._withdrawn(action)
        if begun is None and build is None:
            begun = self._backend.build(*where, request)
        elif begun is None and build is not None:
            begun = self._backend.measure(*where, request, build)
        assert begun is not None
        begun.add_done_callback(lambda future: self._events.put(lambda: self._done(action, future)))

    def _done(self, action: Action, future: Future[Any]) -> None:
        """A build or a timed run has ended, or its worker was lost."""
        error = _error_of(future)
        if error is not None:
            self._deliver(self._lost(action, error))
            if isinstance(error, SlotLostError | CoresLostError):
                self._dispatcher.remove(action.phase, action.node, action.index)
            if isinstance(error, CoresLostError):
                self._lose_cores(error)
        elif action.phase is Phase.BUILD:
            self._deliver(self._dispatcher.build_done(action, future.result()))
        else:
            self._report_throttled(future.result())
            if self._dispatcher.time_done(action):
                self._results.put(future.result())

    def _report_throttled(self, result: MeasureResult) -> None:
        """Say once that a quota stops what is timed."""
        count = int(result.machine.get("throttled_slices", 0))
        if count and not self._is_throttled:
            self._is_throttled = True
            again = with_count(count, "slice")
            self._notify(f"the CPU quota stops timed runs: {again} of one run timed again")

    def _withdrawn(self, action: Action) -> Future[Any] | None:
        """The failure of an action on cores that were taken from this process; None if it may be
        done."""
        if self._affinity is None:
            return None
        cores = action.cores(self._backend.plans[action.node])
        if not (lost := self._affinity.withdrawn(cores)):
            return None
        failed: Future[Any] = Future()
        failed.set_exception(CoresLostError(cores_lost(lost)))
        return failed

    def _lose_cores(self, error: CoresLostError) -> None:
        """Go on with what is left; raise MeasureError if that is not enough."""
        lacking = self._dispatcher.lacks()
        if lacking and not self._patience:
            hint = "the same command goes on with the cores that are left"
            raise MeasureError(f"no {lacking} is left: {error.message}", hint=hint)
        self._notify(f"{error.message}: what else there is goes on")

    def _lost(self, action: Action, error: BaseException) -> MeasureResult | None:
        # Of a machine that is lost with all that ran on it, no candidate is to blame.
        reached = isinstance(error, WorkerLostError) and not isinstance(error, _BLAMELESS)
        reason = f"{type(error).__name__}: {error}"
        return self._dispatcher.lost(action, reason, reached=reached)

    def _deliver(self, result: MeasureResult | None) -> None:
        if result is not None:
            self._results.put(result)


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - monotonic())


def _error_of(future: Future[_T]) -> BaseException | None:
    if future.cancelled():
        return CancelledError("cancelled")
    return future.exception()


def lock_reports(
    locks: CoreLocks, cores: Sequence[int], notify: Callable[[str], None]
) -> Callable[[], None]:
    """What reports, each time it is called, the waits for `cores` that are long, and again those
    that have taken twice as long. `locks` are those of the runner's driver."""
    reported: dict[str, float] = {}  # after so many seconds

    def look() -> None:
        waits = locks.waits(cores)
        for whom in reported.keys() - waits.keys():
            del reported[whom]
        for whom, seconds in waits.items():
            if seconds >= 2 * reported.get(whom, TOLD_SECONDS / 2):
                reported[whom] = seconds
                notify(wait_text(whom, seconds))

    return look
