"""Runner: takes requests, answers each with exactly one result. The protocol of all runners.

A Step is a build or a timed run that has ended, for whoever wants to see what ran where and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, Self, TypeAlias, runtime_checkable

from tunefarm.compiler.target import Target
from tunefarm.measure.farm.dispatch import BuildAction, TimeAction
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.measure.worker.build_candidate import BuildResult

LOST = "lost"


@dataclass(frozen=True, slots=True)
class Step:
    """A build by a builder (`is_build`), or a check and timed run in a slot, of a node by number.

    It `began` and `ended` at moments of this process's `time.monotonic`: when it was given away and
    when its answer came. `status` is that of the answer, or `lost` without any. The seconds are
    those that the worker told.
    """

    is_build: bool
    node: int
    index: int
    request_id: str
    workload: str
    began: float
    ended: float
    status: str = LOST
    build_seconds: float = 0.0
    check_seconds: float = 0.0
    run_seconds: float = 0.0


Watch: TypeAlias = Callable[[Step], None]


def watch_step(
    watch: Watch,
    action: BuildAction | TimeAction,
    future: Future[BuildResult] | Future[MeasureResult],
) -> None:
    """Have `watch` told of the step when it ends, by the thread that ends it."""
    began = monotonic()

    def notify(done: Future[BuildResult] | Future[MeasureResult]) -> None:
        answer = None if done.cancelled() or done.exception() is not None else done.result()
        request = action.job.request
        watch(
            Step(
                isinstance(action, BuildAction),
                action.node,
                action.index,
                request.request_id,
                request.workload_key,
                began,
                monotonic(),
                LOST if answer is None else str(answer.status),
                build_seconds=0.0 if answer is None else answer.build_seconds,
                check_seconds=getattr(answer, "check_seconds", 0.0),
                run_seconds=getattr(answer, "run_seconds", 0.0),
            )
        )

    future.add_done_callback(notify)


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """What a runner measures for, where, and how.

    threads: of the measured kernels; every request must ask for the same count.
    targets: what candidates are compiled for, the best first; this machine when not given. Each
    node measures for one of them, see `tunefarm.measure.sandbox.node_kind`.
    slots, builders: per node; builders default to one for each core that does not time.
    retries: how often a request is tried again after its worker was lost.
    memory_bytes: limit of a worker's address space, 0 for three quarters of the memory.
    address: of a Ray cluster to join; "local" starts Ray on this machine alone.
    token_file: the token of a Ray cluster that asks for one.
    compile, probe: paths `module:function` of the build step, and of what tells what a machine is,
    for tests.
    overlap: whether cores build while others time: "always", "never" (the two alternate), or
    "auto", which tries `tunefarm.measure.farm.overlap` on every node and passes what it found, as a
    sentence, to `tell`.
    """

    threads: int = 1
    targets: tuple[Target, ...] = ()
    slots: int = 1
    builders: int | None = None
    retries: int = 2
    memory_bytes: int = 0
    address: str = "local"
    token_file: str | None = None
    compile: str = ""
    probe: str = ""
    overlap: str = "always"
    notify: Callable[[str], None] | None = None


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

    def __exit__(self, *_error: object) -> None: ...


@runtime_checkable
class ServesTargets(Protocol):
    """A runner whose nodes are of several kinds, each for one target."""

    @property
    def capacities(self) -> Mapping[str, int]:
        """The capacity of each kind of nodes, by the key of its target."""


@runtime_checkable
class TellsSteps(Protocol):
    """A runner that tells what it does where."""

    watch: Watch | None
    """Told of every step that has ended."""


@runtime_checkable
class CallsNodes(Protocol):
    """A runner that can have a function called on a node of a target, when nothing is pending."""

    def call_on(
        self, target: str, function: str, arguments: Sequence[object], seconds: float
    ) -> object:
        """What the function at `module:name` returns on a node of the target (by its key).

        Raises MeasureError when there is no answer within so many seconds, or an error.
        """
