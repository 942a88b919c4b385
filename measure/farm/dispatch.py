"""Which request is built or timed where and next: a state machine without clocks or processes.

A request is built on any builder, then timed on any slot. Builders and slots lease their cores. A
core that is in a slot builds while nothing waits to be timed. On a node that alternates the two
alternate: it builds until a batch is ready or nothing is left to build, then times what was built.
Nodes may be of several kinds: a request for a target stays on nodes of that kind. Nodes come and
go: what was under way on one that is lost is done elsewhere, and nobody is to blame. Nodes may have
several drivers: a slot times for one of them at a time (`tunefarm.measure.core_locks`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tunefarm.measure.farm.slots import CoreLeases, SlotPlan
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.worker.build_candidate import BuildResult

_BATCH = 8
QUARANTINE_KILLS = 2
NODE_FAILURES = 3
MOST_HAND_BACKS = 8
_AHEAD = 2  # per builder and slot: enough that neither waits for the driver


@dataclass(slots=True)
class PendingRequest:
    """A request on its way.

    `losses` counts the tries that ended without a result, `kills` those of them in which a worker
    was lost that had the request; `avoid` is where that happened last. `hand_backs` counts the
    nodes that were lost meanwhile, with all that ran on them.
    """

    request: MeasureRequest
    build: BuildResult | None = None
    losses: int = 0
    kills: int = 0
    avoid: tuple[int, int] | None = None
    hand_backs: int = 0


class Phase(StrEnum):
    """What is done with a request: by a builder, then in a slot, where it is checked and timed."""

    BUILD = "build"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Action:
    """Build or time `job` with builder or in slot `index` of node `node`."""

    phase: Phase
    job: PendingRequest
    node: int
    index: int

    def cores(self, plan: SlotPlan) -> tuple[int, ...]:
        """The cores of its node that it uses."""
        is_build = self.phase is Phase.BUILD
        return (plan.build_cores[self.index],) if is_build else plan.slots[self.index]


@dataclass(slots=True)
class _Waiting:
    """The requests for nodes of one kind that wait for a builder, or for a slot."""

    to_build: deque[PendingRequest] = field(default_factory=deque)
    to_time: deque[PendingRequest] = field(default_factory=deque)
    stranded: float | None = None  # since when no slot is left for them


@dataclass(slots=True)
class _Node:
    plan: SlotPlan
    kind: str
    waiting: _Waiting
    free: dict[Phase, list[int]]  # builders and slots
    running: dict[int, Action] = field(default_factory=dict)  # by identity
    leases: CoreLeases = field(default_factory=CoreLeases)
    phase: Phase = Phase.BUILD
    failures: int = 0  # in a row, in which no worker was reached
    gone: bool = False

    def is_doing(self, phase: Phase) -> bool:
        """Whether something is built, or timed."""
        return any(action.phase is phase for action in self.running.values())

    def can(self, phase: Phase) -> bool:
        """Whether there is a builder or slot that starts, or has, something."""
        return (bool(self.free[phase]) and not self.gone) or self.is_doing(phase)


class Dispatcher:
    """Holds every request from `add` until its result is returned by a `…_done`, `lost` or
    `take_failed` call.
    """

    def __init__(
        self,
        plans: Sequence[SlotPlan],
        retries: int = 2,
        kinds: Sequence[str] | None = None,
    ) -> None:
        """`kinds` are the keys of the nodes' targets; None: all are of one kind."""
        kinds = [""] * len(plans) if kinds is None else kinds
        self._waiting = {kind: _Waiting() for kind in kinds}
        self._nodes: list[_Node] = []
        self._given_up: list[MeasureResult] = []
        self._retries = retries
        for plan, kind in zip(plans, kinds, strict=True):
            self.add_node(plan, kind)

    def add_node(self, plan: SlotPlan, kind: str = "") -> int:
        """Use a node from now on; its number."""
        builders, slots = list(range(len(plan.build_cores))), list(range(len(plan.slots)))
        free = {Phase.BUILD: builders, Phase.TIME: slots}
        waiting = self._waiting.setdefault(kind, _Waiting())
        self._nodes.append(_Node(plan, kind, waiting, free))
        return len(self._nodes) - 1

    def retire_node(self, number: int) -> None:
        """Start nothing more on a node; what is under way there may end. Idempotent."""
        self._nodes[number].gone = True

    def lose_node(self, number: int) -> None:
        """Have others do what was under way on a node that is no more. Idempotent.

        An answer that still comes from there counts no more.
        """
        node = self._nodes[number]
        self.retire_node(number)
        for action in list(node.running.values()):
            self._end(action)
            action.job.hand_backs += 1
            if action.job.hand_backs < MOST_HAND_BACKS:
                self._put_back(action.job, node)
            else:
                text = f"{action.job.hand_backs} nodes were lost while they had it"
                self._given_up.append(_failed(action.job, Status.INFRASTRUCTURE, text))

    def is_idle(self, number: int) -> bool:
        """Whether nothing is under way on a node."""
        return not self._nodes[number].running

    @property
    def waiting(self) -> int:
        """How many requests are not answered yet."""
        queued = sum(len(w.to_build) + len(w.to_time) for w in self._waiting.values())
        running = sum(len(node.running) for node in self._nodes)
        return queued + running + len(self._given_up)

    @property
    def capacity(self) -> int:
        """How many requests may usefully be in flight; at least one, which waits for a node."""
        return sum(self.capacities.values())

    @property
    def capacities(self) -> dict[str, int]:
        """The same for each kind of nodes."""
        totals = dict.fromkeys(self._waiting, 0)
        for node in self._nodes:
            if not node.gone:
                both = len(node.plan.build_cores) + len(node.plan.slots)
                totals[node.kind] += max(_AHEAD * both, 2 * _BATCH if node.plan.alternates else 0)
        return {kind: max(1, total) for kind, total in totals.items()}

    def add(self, request: MeasureRequest) -> None:
        """Take a request in; of several kinds of nodes there must be one for its target."""
        only = next(iter(self._waiting.values()))
        waiting = only if len(self._waiting) == 1 else self._waiting[request.target]
        waiting.to_build.append(PendingRequest(request))

    def next_actions(self) -> list[Action]:
        """What can be started now; the caller starts all of it."""
        actions: list[Action] = []
        for number, node in enumerate(self._nodes):
            if node.gone:
                continue
            if node.plan.alternates:
                self._choose_phase(node)
            actions += self._start_timing(number, node)
            actions += self._start_building(number, node)
        return actions

    def build_done(self, action: Action, build: BuildResult) -> MeasureResult | None:
        """A build ended; the final result if it failed."""
        if not self._end(action):
            return None
        self._nodes[action.node].failures = 0
        action.job.build = build
        if build.status is not Status.OK:
            failed = _failed(action.job, build.status, build.error)
            return replace(failed, culprit=build.culprit) if action.job.request.rivals else failed
        self._nodes[action.node].waiting.to_time.append(action.job)
        return None

    def time_done(self, action: Action) -> bool:
        """A timed run ended with a result; whether that counts."""
        if not self._end(action):
            return False
        self._nodes[action.node].failures = 0
        return True

    def lost(self, action: Action, reason: str, *, reached: bool = True) -> MeasureResult | None:
        """The worker was lost: the job waits for another one, or fails after too many losses.

        `reached`: the worker had the request. A request that loses two workers is quarantined. A
        node on which `NODE_FAILURES` times in a row no worker was reached gets no more work, unless
        it is the last one of its kind. On a node that leaves, workers are lost through nobody's
        fault.
        """
        if not self._end(action):
            return None
        job, node = action.job, self._nodes[action.node]
        if node.gone:
            self._put_back(job, node)
            return None
        job.kills += reached
        node.failures = 0 if reached else node.failures + 1
        alike = (other for other in self._nodes if other.kind == node.kind)
        others = [other for other in alike if other is not node and not other.gone]
        node.gone = node.gone or (node.failures >= NODE_FAILURES and bool(others))
        job.losses += reached or not others  # elsewhere it has not been tried yet
        if action.phase is Phase.TIME:
            job.avoid = action.node, action.index
        if job.kills >= QUARANTINE_KILLS:
            text = f"{job.kills} workers were lost under this candidate, the last one: {reason}"
            return _failed(job, Status.QUARANTINED, text)
        if job.losses > self._retries:
            return _failed(job, Status.INFRASTRUCTURE, reason)
        self._put_back(job, node)
        return None

    def remove(self, phase: Phase, node: int, index: int) -> None:
        """A free builder or slot is gone for good. Idempotent."""
        free = self._nodes[node].free[phase]
        if index in free:
            free.remove(index)

    def lacks(self) -> str:
        """What no node has any more, a slot or a builder; "" if there are some of both."""
        nodes = [node for node in self._nodes if not node.gone]
        if not any(node.can(Phase.TIME) for node in nodes):
            return "measuring slot"
        return "" if any(node.can(Phase.BUILD) for node in nodes) else "builder"

    def take_failed(self, now: float = 0.0, patience: float = 0.0) -> list[MeasureResult]:
        """What lost too many nodes, or has waited for so many seconds although no slot of its kind
        is left."""
        given_up, self._given_up = self._given_up, []
        stranded: list[PendingRequest] = []
        for kind, waiting in self._waiting.items():
            nodes = [node for node in self._nodes if node.kind == kind]
            is_served = any(node.can(Phase.TIME) for node in nodes)
            if is_served or not (waiting.to_time or waiting.to_build):
                waiting.stranded = None
                continue
            waiting.stranded = now if waiting.stranded is None else waiting.stranded
            if now - waiting.stranded < patience:
                continue
            stranded += [*waiting.to_time, *waiting.to_build]
            waiting.to_time.clear()
            waiting.to_build.clear()
        reason = "no measuring slot is left"
        return given_up + [_failed(job, Status.INFRASTRUCTURE, reason) for job in stranded]

    def _choose_phase(self, node: _Node) -> None:
        to_time, to_build = node.waiting.to_time, node.waiting.to_build
        enough = len(to_time) >= _BATCH or not to_build
        if node.phase is Phase.BUILD and to_time and enough:
            node.phase = Phase.TIME
        elif node.phase is Phase.TIME and not to_time and not node.is_doing(Phase.TIME):
            node.phase = Phase.BUILD

    def _start_timing(self, number: int, node: _Node) -> list[Action]:
        is_building = node.is_doing(Phase.BUILD)
        if node.plan.alternates and (node.phase is not Phase.TIME or is_building):
            return []
        started: list[Action] = []
        for index in list(node.free[Phase.TIME]):
            if not node.waiting.to_time:
                break
            if node.leases.acquire(node.plan.slots[index]):
                job = self._take(node, number, index)
                started.append(self._begin(Action(Phase.TIME, job, number, index)))
        return started

    def _start_building(self, number: int, node: _Node) -> list[Action]:
        is_timing = node.is_doing(Phase.TIME)
        if node.plan.alternates and (node.phase is not Phase.BUILD or is_timing):
            return []
        started: list[Action] = []
        for index in sorted(node.free[Phase.BUILD]):
            if not node.waiting.to_build:
                break
            core = node.plan.build_cores[index]
            if core in node.plan.timed and node.waiting.to_time and not node.plan.alternates:
                continue  # it is about to be needed
            if node.leases.acquire((core,)):
                job = node.waiting.to_build.popleft()
                started.append(self._begin(Action(Phase.BUILD, job, number, index)))
        return started

    def _begin(self, action: Action) -> Action:
        node = self._nodes[action.node]
        node.free[action.phase].remove(action.index)
        node.running[id(action)] = action
        return action

    def _end(self, action: Action) -> bool:
        """Free what an action had; False if that was done before, because its node was lost."""
        node = self._nodes[action.node]
        if node.running.pop(id(action), None) is None:
            return False
        node.free[action.phase].append(action.index)
        node.leases.release(action.cores(node.plan))
        return True

    def _put_back(self, job: PendingRequest, node: _Node) -> None:
        (node.waiting.to_build if job.build is None else node.waiting.to_time).appendleft(job)

    def _take(self, node: _Node, number: int, index: int) -> PendingRequest:
        """The next job for a slot; one that lost its worker there goes elsewhere if it can."""
        queue = node.waiting.to_time
        live = [other for other in self._nodes if other.kind == node.kind and not other.gone]
        timing = (action for other in live for action in other.running.values())
        busy = sum(action.phase is Phase.TIME for action in timing)
        if busy + sum(len(other.free[Phase.TIME]) for other in live) > 1:
            for job in queue:
                if job.avoid != (number, index):
                    queue.remove(job)
                    return job
        return queue.popleft()


def _failed(job: PendingRequest, status: Status, error: str) -> MeasureResult:
    seconds = job.build.build_seconds if job.build is not None else 0.0
    return MeasureResult(job.request.request_id, status, (), error, seconds)
