"""RayRunner: builds and timed runs in disposable processes under actors, one a builder or slot.

Ray moves requests to nodes and tells when one is lost; it neither pins nor times anything. What its
defaults would spoil is set here: workers keep niceness 0 (they start at 15), tasks and actors are
not retried behind the runner's back, the object store is small, the dashboard and usage reports
are off, and address="local" never joins someone else's cluster.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunefarm.compiler.errors import MeasureError, TunefarmError
from tunefarm.compiler.target import host_target
from tunefarm.configs.temporary_folders import make_folder, on_leaving
from tunefarm.measure.core_locks import CoreLocks
from tunefarm.measure.farm.farm_process import is_loopback, ray_daemons
from tunefarm.measure.farm.farm_records import authentication
from tunefarm.measure.farm.node_watch import Node, NodeWatch
from tunefarm.measure.farm.pipeline_runner import PipelineRunner, SlotLostError, lock_reports
from tunefarm.measure.farm.ray_address import check_address, check_loopback
from tunefarm.measure.farm.ray_calls import begin_call, call_on_node
from tunefarm.measure.farm.ray_launch import ADDRESS_FILE, Wanted, check_threads, launch, refusal
from tunefarm.measure.farm.ray_nodes import (
    NodeEntry,
    begin_inspection,
    expect_own_code,
    facts_of,
    find_nodes,
    live_nodes,
    node_entries,
    node_of,
)
from tunefarm.measure.farm.ray_start import connect
from tunefarm.measure.farm.runner import RunnerOptions
from tunefarm.measure.farm.slots import ProcessPin, SlotPlan
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.measure.sandbox.reaper import TAG_VARIABLE, Process, Reaper, is_alive
from tunefarm.measure.sandbox.versions import differences, installation
from tunefarm.measure.sandbox.worker_process import Role, WorkerStartError
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import BuildResult
from tunefarm.measure.worker.supervisor import BUILD, MEASURE, Supervisor

# What runs in the Ray worker processes of a node: one that builds, and the actor of a slot.


def check_versions(drivers: Mapping[str, str]) -> None:
    """Raise `WorkerStartError` if this process has other versions than its driver: it was started
    after tunefarm was installed again, or edited."""
    here = installation()
    if different := differences(drivers, here.versions):
        raise WorkerStartError(
            f"a worker that imports {here.folder} runs other code than this job: {different}; "
            "install one version everywhere, and start the job again"
        )


class Worker:
    """The actor of a builder or of a measuring slot: a supervisor and its process, so that a crash
    of the compiler, or of what it made, costs that process only.

    Builders are actors and no tasks: of several drivers' idle workers Ray ends those that are more
    than the node has cores, and starting others takes longer than many builds.
    """

    def __init__(self, settings: WorkerSettings, role: Role, drivers: Mapping[str, str]) -> None:
        """`settings` name its cores; `drivers` are the versions that the driver has."""
        self._settings = settings
        self._drivers = drivers
        self._supervisor = Supervisor(settings, role)

    def start(self) -> int | None:
        """Have the worker process ready; its process id."""
        self._supervisor.start()
        return self._supervisor.pid

    def build(self, request: MeasureRequest) -> BuildResult:
        """Build a candidate."""
        check_versions(self._drivers)
        return self._supervisor.build(request)

    def measure(self, request: MeasureRequest, build: BuildResult) -> MeasureResult:
        """Check and time a candidate, with the slot's cores for itself."""
        check_versions(self._drivers)
        return self._supervisor.measure(request, build)

    def close(self) -> None:
        """End the worker process and remove this node's scratch files."""
        self._supervisor.close()
        shutil.rmtree(self._settings.scratch, ignore_errors=True)


_LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 128 << 20
_CLOSE_SECONDS = 3.0
_NODE_SECONDS = 300.0  # that requests wait for a node to join when none is left
_MOST_FOLDER_CHARACTERS = 40  # Ray puts sockets below, whose names have at most 107
_ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a warning about devices
}


_Worker: TypeAlias = tuple[Literal["build", "measure"], int, int]
"""What a worker does, and the numbers of its node and of its builder or slot there."""


class RayBackend:
    """Builders and slots of every node of a Ray cluster that has one of the wanted targets."""

    def __init__(self, settings: WorkerSettings, plan: SlotPlan, options: RunnerOptions) -> None:
        """Start or join Ray and start an actor for each slot.

        `plan` is this machine's, used when Ray is embedded. Raises MeasureError when Ray does not
        start or a target has no node.
        """
        self._options = options
        self._settings = settings
        self.wanted = options.targets or (host_target(),)
        self._embedded = options.address == "local"
        self._owns_ray = not ray.is_initialized()
        self._pin = ProcessPin()
        self._reaper: Reaper | None = None
        self._forget: Callable[[], None] = lambda: None
        self._tag = ""  # of the processes of a Ray that this process starts
        self.folder = ""  # of its files
        self.daemons: set[Process] = set()  # of an embedded Ray
        self._worker: Any = ray.remote(Worker)
        self._nodes: list[Node] = []
        self._entries: dict[str, NodeEntry] = {}  # of nodes that live, as last seen
        self._actors: dict[_Worker, Any] = {}
        try:
            self._start(plan)
        except BaseException:  # an interrupt as well: nothing may be left running
            self.close()
            raise
        self.plans: Sequence[SlotPlan] = tuple(node.plan for node in self._nodes)
        self.kinds = tuple(node.target.key for node in self._nodes)
        self.names = tuple(node.id for node in self._nodes)

    def _start(self, plan: SlotPlan) -> None:
        if self._embedded and plan.spare:
            self._pin.confine(plan.spare)
        if self._embedded:
            check_loopback()
            check_threads(len(plan.slots) + len(plan.build_cores))
        elif self._owns_ray:
            check_address(self._options.address)
        if self._owns_ray:
            self._own_ray(plan)
        if self._embedded:
            node = ray.get_runtime_context().get_node_id()
            asked = begin_call("builtins:bool", (), node, max_retries=0)
            self._nodes = [Node(node, plan, self.wanted[0])]
        else:
            self._nodes = find_nodes(self.wanted, self._options)
        for number in range(len(self._nodes)):
            self._start_workers(number)
        if self._embedded:  # the workers start meanwhile, and are given nothing before
            expect_own_code(asked, self._tag, self.folder)

    def _own_ray(self, plan: SlotPlan) -> None:
        """Start Ray or join a cluster."""
        self._tag, address = uuid.uuid4().hex, self._options.address
        folder = make_folder("ray", most_characters=_MOST_FOLDER_CHARACTERS)
        self.folder = str(folder)
        variables = {
            **_ENVIRONMENT,
            **authentication(address, self._options.token_file),
            TAG_VARIABLE: self._tag,
        }
        alone = self._embedded or is_loopback(address.rpartition(":")[0])
        try:
            if self._embedded:
                self._reaper = Reaper(self._tag, self._settings.scratch, self.folder)
                self._forget = on_leaving(self._reaper.close)
                arguments = _of_head(plan, self.folder)
                wanted = Wanted("head", f"{_LOOPBACK}:0", self.folder, True, arguments)
            else:
                wanted = Wanted("driver", address, self.folder, alone)
            launch(wanted, {**os.environ, **variables})  # noqa: TID251
            if self._reaper is not None:
                self._reaper.note()
                self.daemons = ray_daemons(self._tag)
                address = (folder / ADDRESS_FILE).read_text().strip()
            connect(address, variables, alone=alone)
        except TunefarmError:
            raise
        except (RayError, OSError, RuntimeError, ValueError) as error:
            raise refusal((str(error).strip().splitlines() or [type(error).__name__])[0]) from error

    def build(self, node: int, index: int, request: MeasureRequest) -> Future[BuildResult]:
        """Build a candidate with a builder of a node; fails with SlotLostError if that is gone."""
        return self._call(("build", node, index), request)

    def measure(
        self, node: int, index: int, request: MeasureRequest, build: BuildResult
    ) -> Future[MeasureResult]:
        """Check and time a candidate in a slot of a node; fails with SlotLostError like that."""
        return self._call(("measure", node, index), request, build)

    def _call(self, worker: _Worker, *arguments: object) -> Future[Any]:
        """Have a worker do what it is for."""
        what, node, _ = worker
        if worker not in self._actors and not self._is_alive(node):
            gone: Future[Any] = Future()
            gone.set_exception(SlotLostError(f"node {self._nodes[node].id} is gone"))
            return gone
        future: Future[Any] = getattr(self._actor(worker), what).remote(*arguments).future()
        future.add_done_callback(lambda done: self._drop_dead_actor(worker, done))
        return future

    def look(self) -> Mapping[str, bool]:
        """See `tunefarm.measure.farm.node_watch.Cluster`."""
        self._entries = {entry.id: entry for entry in node_entries()}
        return {entry.id: entry.leaves for entry in self._entries.values()}

    def inspect(self, node: str) -> Future[Node | str]:
        """What a node that `look` has named is: one to measure on, or why it is not."""
        entry = self._entries[node]
        answer: Future[Node | str] = Future()

        def answered(asked: Future[Any]) -> None:
            if (error := asked.exception()) is not None:
                answer.set_exception(error)
            elif isinstance(facts := facts_of(asked.result()), str):
                answer.set_result(facts)
            else:
                answer.set_result(node_of(entry, facts, self.wanted) or facts.refusal)

        begin_inspection(entry, self._options).future().add_done_callback(answered)
        return answer

    def hire(self, node: Node) -> int:
        """Have the workers of a node that has joined ready; its number."""
        self._nodes.append(node)
        self._start_workers(len(self._nodes) - 1)
        return len(self._nodes) - 1

    def drop(self, number: int) -> None:
        """End the workers of a node that leaves or is gone. Idempotent."""
        for key in [key for key in self._actors if key[1] == number]:
            with suppress(RayError):
                ray.kill(self._actors.pop(key))

    def call_on(
        self, target: str, function: str, arguments: Sequence[object], seconds: float
    ) -> object:
        """What a function returns on the first node of the target that lives."""
        live = live_nodes()
        node = next((n for n in self._nodes if n.target.key == target and n.id in live), None)
        if node is None:
            raise MeasureError(f"no node of the cluster is a {target} any more")
        wanted, probe = self.wanted, self._options.probe
        return call_on_node(node.id, node.target, wanted, probe, function, arguments, seconds)

    def close(self) -> None:
        """Let go of Ray, and end what this process started of it."""
        self._pin.release()
        if self._reaper is not None and not all(map(is_alive, self.daemons)):
            self._reaper.end()  # what is left of Ray goes while this process lets go of it
        if ray.is_initialized():
            self._leave_ray()
        if self._reaper is not None:
            self._reaper.close()
            self._forget()
        for folder in filter(None, (self._settings.scratch, self.folder)):
            shutil.rmtree(folder, ignore_errors=True)

    def _leave_ray(self) -> None:
        actors = list(self._actors.values())
        if not self._embedded and actors:
            closing = [actor.close.remote() for actor in actors]
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
        for actor in actors:
            ray.kill(actor)
        if self._owns_ray:
            ray.shutdown()

    def _settings_of(self, node: int) -> WorkerSettings:
        """What the workers of a node are told: its target, and what is to be checked of it."""
        kinds = () if self._embedded else tuple(target.to_json() for target in self.wanted)
        found = self._nodes[node]
        niceness = max(self._settings.niceness, found.niceness)
        target = found.target.to_json()
        return replace(
            self._settings,
            target=target,
            kinds=kinds,
            niceness=niceness,
            driver=self._settings.driver,
            alternates=found.plan.alternates,
        )

    def _start_workers(self, number: int) -> None:
        plan = self._nodes[number].plan
        for index in range(len(plan.slots)):
            self._actor(("measure", number, index))
        for index in range(len(plan.build_cores)):
            self._actor(("build", number, index))

    def _actor(self, worker: _Worker) -> Any:
        """The actor of a slot or builder, started if there is none."""
        actor = self._actors.get(worker)
        if actor is None:
            what, node, index = worker
            plan, settings = self._nodes[node].plan, self._settings_of(node)
            options = {
                "num_cpus": 0,  # the runner leases cores; Ray only places the actor
                "max_restarts": 0,
                "max_task_retries": 0,
                "scheduling_strategy": NodeAffinitySchedulingStrategy(
                    self._nodes[node].id, soft=False
                ),
            }
            is_build = what == "build"
            cores = (plan.build_cores[index],) if is_build else plan.slots[index]
            actor = self._worker.options(**options).remote(
                replace(settings, cores=cores),
                BUILD if is_build else MEASURE,
                installation().versions,
            )
            actor.start.remote()
            self._actors[worker] = actor
        return actor

    def _drop_dead_actor(self, worker: _Worker, done: Future[Any]) -> None:
        """Forget an actor that died, so that the next call starts another."""
        error = done.exception()
        if isinstance(error, RayError) and not isinstance(error, ray.exceptions.RayTaskError):
            self._actors.pop(worker, None)

    def _is_alive(self, node: int) -> bool:
        wanted = self._nodes[node].id
        return wanted in live_nodes()


class RayRunner(PipelineRunner):
    """Measures on a Ray cluster, by default one that starts and ends with this runner.

    While an embedded runner is open, this process stays off the measuring cores.
    """

    def __init__(self, settings: WorkerSettings, plan: SlotPlan, options: RunnerOptions) -> None:
        self.backend = RayBackend(settings, plan, options)
        joined = options.address != "local"
        patience = _NODE_SECONDS if joined else 0.0
        super().__init__(
            self.backend,
            settings.threads,
            options.retries,
            self.backend.kinds,
            patience,
            notify=options.notify,
        )
        if joined:
            known = {name: number for number, name in enumerate(self.backend.names)}
            self.watch(NodeWatch(self.backend, known, self.change, options.notify).look)
            return
        looks = [self._look_at_daemons]
        if options.notify is not None:
            cores = (*plan.build_cores, *plan.timed)
            looks.append(lock_reports(CoreLocks(settings.driver), cores, options.notify))
        self.watch(*looks)

    def _look_at_daemons(self) -> None:
        """Notice that an embedded Ray has died, long before its own health checks do."""
        if not all(map(is_alive, self.backend.daemons)):
            hint = "what was measured is recorded; the same command goes on from there"
            self.fail(MeasureError("Ray has ended, not by us", hint=hint))

    def call_on(
        self, target: str, function: str, arguments: Sequence[object], seconds: float
    ) -> object:
        """See `tunefarm.measure.farm.runner.CallsNodes`."""
        return self.backend.call_on(target, function, arguments, seconds)


def _of_head(plan: SlotPlan, folder: str) -> tuple[str, ...]:
    """The options of `ray start` for an embedded Ray."""
    return (
        *("--head", "--port", "0", "--node-ip-address", _LOOPBACK, "--temp-dir", folder),
        *("--num-cpus", str(len(plan.build_cores))),
        *("--object-store-memory", str(_OBJECT_STORE_BYTES)),
        *("--include-dashboard", "false", "--include-log-monitor", "false"),
        *("--disable-usage-stats", "--no-monitor"),
    )
