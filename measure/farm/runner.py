"""Runner: takes requests, answers each with exactly one result. The protocol of all runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from tunefarm.compiler.target import Target
from tunefarm.measure.measurement import MeasureRequest, MeasureResult


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
    def capacities(self) -> Mapping[str, int]:
        """The same for each kind of its nodes, by the key of their target."""

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
class CallsNodes(Protocol):
    """A runner that can have a function called on a node of a target, when nothing is pending."""

    def call_on(
        self, target: str, function: str, arguments: Sequence[object], seconds: float
    ) -> object:
        """What the function at `module:name` returns on a node of the target (by its key).

        Raises MeasureError when there is no answer within so many seconds, or an error.
        """
