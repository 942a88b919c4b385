"""Which request is built or timed where and next: a state machine without clocks or processes.

A request is built on any builder, then timed on any slot. Builders and slots lease their cores. A
core that is in a slot builds while nothing waits to be timed. On a node that alternates the two
take turns: it builds until a batch is ready or nothing is left to build, then times what was built.
Nodes may be of several kinds: a request for a target stays on nodes of that kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from measure.farm.slots import CoreLeases, SlotPlan
from measure.measurement import MeasureRequest, MeasureResult, Status
from measure.worker.build_candidate import BuildResult

_BATCH = 8
QUARANTINE_KILLS = 2
NODE_FAILURES = 3
_AHEAD = 2  # per builder and slot: enough that neither waits for the driver


@dataclass(slots=True)
class Job:
    """A request on its way.

    `losses` counts the tries that ended without a result, `kills` those of them in which a worker
    was lost that had the request; `avoid` is where that happened last.
    """

    request: MeasureRequest
    build: BuildResult | None = None
    losses: int = 0
    kills: int = 0
    avoid: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class BuildAction:
    """Build `job` with builder `index` of node `node`."""

    job: Job
    node: int
    index: int


@dataclass(frozen=True, slots=True)
class TimeAction:
    """Check and time `job` in slot `index` of node `node`."""

    job: Job
    node: int
    index: int


class _Phase(StrEnum):
    BUILD = "build"
    TIME = "time"


@dataclass(slots=True)
class _Waiting:
    """The requests for nodes of one kind that wait for a builder, or for a slot."""

    to_build: deque[Job] = field(default_factory=deque)
    to_time: deque[Job] = field(default_factory=deque)


@dataclass(slots=True)
class _Node:
    plan: SlotPlan
    kind: str
    waiting: _Waiting
    builders: list[int]  # free ones
    slots: list[int]  # free ones
    leases: CoreLeases = field(default_factory=CoreLeases)
    building: int = 0
    timing: int = 0
    phase: _Phase = _Phase.BUILD
    failures: int = 0  # in a row, in which no worker was reached
    gone: bool = False


class Dispatcher:
    """Holds every request from `add` until its result is returned by a `…_done`, `lost` or
    `take_stranded` call.
    """

    def __init__(
        self, plans: Sequence[SlotPlan], retries: int = 2, kinds: Sequence[str] | None = None
    ) -> None:
        """`kinds` are the keys of the nodes' targets; None: all are of one kind."""
        kinds = [""] * len(plans) if kinds is None else kinds
        self._waiting = {kind: _Waiting() for kind in kinds}
        self._nodes = [
            _Node(
                plan,
                kind,
                self._waiting[kind],
                list(range(len(plan.build_cores))),
                list(range(len(plan.slots))),
            )
            for plan, kind in zip(plans, kinds, strict=True)
        ]
        self._retries = retries

    @property
    def capacity(self) -> int:
        """How many requests may usefully be in flight."""
        return sum(self.capacities.values())

    @property
    def capacities(self) -> dict[str, int]:
        """The same for each kind of nodes."""
        totals = dict.fromkeys(self._waiting, 0)
        for node in self._nodes:
            both = len(node.plan.build_cores) + len(node.plan.slots)
            totals[node.kind] += max(_AHEAD * both, 2 * _BATCH if node.plan.alternates else 0)
        return totals

    def add(self, request: MeasureRequest) -> None:
        """Take a request in; of several kinds of nodes there must be one for its target."""
        only = next(iter(self._waiting.values()))
        waiting = only if len(self._waiting) == 1 else self._waiting[request.target]
        waiting.to_build.append(Job(request))

    def next_actions(self) -> list[BuildAction | TimeAction]:
        """What can be started now; the caller starts all of it."""
        actions: list[BuildAction | TimeAction] = []
        for number, node in enumerate(self._nodes):
            if node.gone:
                continue
            if node.plan.alternates:
                self._choose_phase(node)
            actions += self._start_timing(number, node)
            actions += self._start_building(number, node)
        return actions

    def build_done(self, action: BuildAction, build: BuildResult) -> MeasureResult | None:
        """A build ended; the final result if it failed."""
        self._free_builder(action)
        self._nodes[action.node].failures = 0
        action.job.build = build
        if build.status is not Status.OK:
            failed = _failed(action.job, build.status, build.error)
            return replace(failed, culprit=build.culprit) if action.job.request.rivals else failed
        self._nodes[action.node].waiting.to_time.append(action.job)
        return None

    def time_done(self, action: TimeAction) -> None:
        """A timed run ended with a result."""
        self._free_slot(action)
        self._nodes[action.node].failures = 0

    def lost(
        self, action: BuildAction | TimeAction, reason: str, *, reached: bool = True
    ) -> MeasureResult | None:
        """The worker was lost: the job waits for another one, or fails after too many losses.

        `reached`: the worker had the request. A request that loses two workers is quarantined. A
        node on which `NODE_FAILURES` times in a row no worker was reached gets no more work, unless
        it is the last one of its kind.
        """
        if isinstance(action, BuildAction):
            self._free_builder(action)
        else:
            self._free_slot(action)
        job, node = action.job, self._nodes[action.node]
        job.kills += reached
        node.failures = 0 if reached else node.failures + 1
        alike = (other for other in self._nodes if other.kind == node.kind)
        others = [other for other in alike if other is not node and not other.gone]
        node.gone = node.gone or (node.failures >= NODE_FAILURES and bool(others))
        job.losses += reached or not others  # elsewhere it has not been tried yet
        if isinstance(action, TimeAction):
            job.avoid = action.node, action.index
        if job.kills >= QUARANTINE_KILLS:
            text = f"{job.kills} workers were lost under this candidate, the last one: {reason}"
            return _failed(job, Status.QUARANTINED, text)
        if job.losses > self._retries:
            return _failed(job, Status.INFRASTRUCTURE, reason)
        (node.waiting.to_build if job.build is None else node.waiting.to_time).appendleft(job)
        return None

    def remove_slot(self, node: int, index: int) -> None:
        """A free slot is gone for good."""
        self._nodes[node].slots.remove(index)

    def take_stranded(self) -> list[MeasureResult]:
        """What waits although no slot of its kind is left fails here; else nothing."""
        stranded: list[Job] = []
        for kind, waiting in self._waiting.items():
            nodes = [node for node in self._nodes if node.kind == kind]
            if any((node.slots and not node.gone) or node.timing for node in nodes):
                continue
            stranded += [*waiting.to_time, *waiting.to_build]
            waiting.to_time.clear()
            waiting.to_build.clear()
        reason = "no measuring slot is left"
        return [_failed(job, Status.INFRASTRUCTURE, reason) for job in stranded]

    def _choose_phase(self, node: _Node) -> None:
        to_time, to_build = node.waiting.to_time, node.waiting.to_build
        enough = len(to_time) >= _BATCH or not to_build
        if node.phase is _Phase.BUILD and to_time and enough:
            node.phase = _Phase.TIME
        elif node.phase is _Phase.TIME and not to_time and not node.timing:
            node.phase = _Phase.BUILD

    def _start_timing(self, number: int, node: _Node) -> list[BuildAction | TimeAction]:
        if node.plan.alternates and (node.phase is not _Phase.TIME or node.building):
            return []
        started: list[BuildAction | TimeAction] = []
        for index in list(node.slots):
            if not node.waiting.to_time:
                break
            if not node.leases.acquire(node.plan.slots[index]):
                continue
            node.slots.remove(index)
            node.timing += 1
            job = self._take(node, number, index)
            started.append(TimeAction(job, number, index))
        return started

    def _start_building(self, number: int, node: _Node) -> list[BuildAction | TimeAction]:
        if node.plan.alternates and (node.phase is not _Phase.BUILD or node.timing):
            return []
        started: list[BuildAction | TimeAction] = []
        for index in sorted(node.builders):
            if not node.waiting.to_build:
                break
            core = node.plan.build_cores[index]
            if core in node.plan.timed and node.waiting.to_time and not node.plan.alternates:
                continue  # it is about to be needed
            if not node.leases.acquire((core,)):
                continue
            node.builders.remove(index)
            node.building += 1
            started.append(BuildAction(node.waiting.to_build.popleft(), number, index))
        return started

    def _take(self, node: _Node, number: int, index: int) -> Job:
        """The next job for a slot; one that lost its worker there goes elsewhere if it can."""
        queue = node.waiting.to_time
        live = [other for other in self._nodes if other.kind == node.kind and not other.gone]
        if sum(len(other.slots) + other.timing for other in live) > 1:
            for job in queue:
                if job.avoid != (number, index):
                    queue.remove(job)
                    return job
        return queue.popleft()

    def _free_builder(self, action: BuildAction) -> None:
        node = self._nodes[action.node]
        node.building -= 1
        node.builders.append(action.index)
        node.leases.release((node.plan.build_cores[action.index],))

    def _free_slot(self, action: TimeAction) -> None:
        node = self._nodes[action.node]
        node.timing -= 1
        node.slots.append(action.index)
        node.leases.release(node.plan.slots[action.index])


def _failed(job: Job, status: Status, error: str) -> MeasureResult:
    seconds = job.build.build_seconds if job.build is not None else 0.0
    return MeasureResult(job.request.request_id, status, (), error, seconds)
