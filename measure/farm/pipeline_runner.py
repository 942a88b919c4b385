"""The part that LocalRunner and RayRunner share: a thread that drives requests through a backend.

The thread owns the dispatcher and waits on one queue of events (submitted, built, timed, a node
that joined or left, closed), so that builders and slots stay busy while the driver thinks, and no
state needs a lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from time import monotonic
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from tunefarm.compiler.errors import MeasureError, with_count
from tunefarm.measure.core_locks import TOLD_SECONDS, CoreLocks, wait_text
from tunefarm.measure.farm.dispatch import Action, BuildAction, Dispatcher, TimeAction
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


class Crew(Protocol):
    """Changes who measures, within the runner's thread (see `PipelineRunner.change`)."""

    def add_node(self, plan: SlotPlan, kind: str = "") -> int:
        """Use a node, that the backend knows by the number that comes back."""

    def retire_node(self, number: int) -> None:
        """Start nothing more there; what is under way may end."""

    def lose_node(self, number: int) -> None:
        """It is no more: have others do what was under way there."""

    def is_idle(self, number: int) -> bool:
        """Whether nothing is under way there."""


_T = TypeVar("_T")
_Event: TypeAlias = Callable[[], None]
_CLOSE_SECONDS = 10.0
_BLAMELESS = (WorkerStartError, WorkerEndedError)


class _Crew:
    """A Crew over a dispatcher; hands on what a lost node leaves without an answer."""

    def __init__(
        self, dispatcher: Dispatcher, deliver: Callable[[MeasureResult | None], None]
    ) -> None:
        self._deliver = deliver
        self._dispatcher = dispatcher
        self.add_node = dispatcher.add_node
        self.retire_node = dispatcher.retire_node
        self.is_idle = dispatcher.is_idle

    def lose_node(self, number: int) -> None:
        for result in self._dispatcher.lose_node(number):
            self._deliver(result)


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
        self._crew = _Crew(self._dispatcher, self._deliver)
        self._patience = patience
        self._affinity = AffinityWatch() if patience == 0.0 else None
        self._notify = notify or (lambda _: None)
        self._is_throttled = False
        self._capacity = self._dispatcher.capacity
        self._capacities = self._dispatcher.capacities
        self._events: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[MeasureResult | None] = queue.SimpleQueue()
        self._pending = 0
        self._closed = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="tunefarm-runner", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def capacities(self) -> Mapping[str, int]:
        """The capacity of each kind of nodes, by the key of its target."""
        return self._capacities

    @property
    def pending(self) -> int:
        return self._pending

    def change(self, change: Callable[[Crew], None]) -> None:
        """Have the runner's thread change who measures. From any thread."""
        self._events.put(lambda: change(self._crew))

    def fail(self, error: Exception) -> None:
        """End all measuring: `results` raises a MeasureError from now on. From any thread."""

        def raise_error() -> None:
            raise error

        self._events.put(raise_error)

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
        self._events.put(None)
        self._thread.join(_CLOSE_SECONDS)
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
                for result in self._dispatcher.take_stranded(monotonic(), self._patience):
                    self._results.put(result)
                for action in self._dispatcher.next_actions():
                    self._start(action)
                self._capacities = self._dispatcher.capacities
                self._capacity = sum(self._capacities.values())
        except Exception as error:  # noqa: BLE001 - a bug of ours must reach the driver's thread
            self._failure = error
            self._results.put(None)

    def _start(self, action: Action) -> None:
        request = action.job.request
        if isinstance(action, BuildAction):
            building = self._withdrawn(action) or self._backend.build(
                action.node, action.index, request
            )
            building.add_done_callback(
                lambda future: self._events.put(lambda: self._built(action, future))
            )
            return
        assert action.job.build is not None
        timing = self._withdrawn(action) or self._backend.measure(
            action.node, action.index, request, action.job.build
        )
        timing.add_done_callback(
            lambda future: self._events.put(lambda: self._timed(action, future))
        )

    def _built(self, action: BuildAction, future: Future[BuildResult]) -> None:
        error = _error_of(future)
        if error is not None:
            self._deliver(self._lost(action, error))
            if isinstance(error, CoresLostError):
                self._dispatcher.remove_builder(action.node, action.index)
                self._lose_cores(error)
        else:
            self._deliver(self._dispatcher.build_done(action, future.result()))

    def _timed(self, action: TimeAction, future: Future[MeasureResult]) -> None:
        error = _error_of(future)
        if error is None:
            self._report_throttled(future.result())
            if self._dispatcher.time_done(action):
                self._results.put(future.result())
            return
        self._deliver(self._lost(action, error))
        if isinstance(error, SlotLostError | CoresLostError):
            self._dispatcher.remove_slot(action.node, action.index)
        if isinstance(error, CoresLostError):
            self._lose_cores(error)

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
        plan = self._backend.plans[action.node]
        is_build = isinstance(action, BuildAction)
        cores = (plan.build_cores[action.index],) if is_build else plan.slots[action.index]
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


_POLL_SECONDS = 1.0


class LockWatch:
    """Looks from a thread of its own; tells of a wait when it is long, and again when it has taken
    twice as long."""

    def __init__(
        self, locks: CoreLocks, cores: Sequence[int], notify: Callable[[str], None] | None
    ) -> None:
        """`locks` are those of the runner's driver, `cores` all that it uses."""
        self._locks = locks
        self._cores = cores
        self._notify = notify
        self._text: dict[str, float] = {}  # after so many seconds
        self._closed = threading.Event()
        if notify is not None:
            threading.Thread(target=self._watch, name="tunefarm-lock-watch", daemon=True).start()

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._closed.set()

    def look(self) -> None:
        """Look once."""
        waits = self._locks.waits(self._cores)
        self._text = {whom: text for whom, text in self._text.items() if whom in waits}
        for whom, seconds in waits.items():
            if self._notify is not None and seconds >= 2 * self._text.get(whom, TOLD_SECONDS / 2):
                self._text[whom] = seconds
                self._notify(wait_text(whom, seconds))

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            self.look()
