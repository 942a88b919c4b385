"""The one place where a runner is chosen and configured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compiler.errors import MeasureError
from compiler.target import Target, host_target
from configs.remains import make_folder
from measure.farm.local_runner import LocalRunner
from measure.farm.replay_runner import RecordKey, ReplayRunner
from measure.farm.runner import Runner
from measure.farm.slots import plan_slots
from measure.machine import available_cores
from measure.measurement import MeasureResult
from measure.sandbox.worker_settings import WorkerSettings


def create_runner(
    kind: str,
    *,
    threads: int = 1,
    target: Target | None = None,
    numerics: str = "default",
    slots: int = 1,
    builders: int | None = None,
    retries: int = 2,
    memory_bytes: int = 0,
    address: str = "local",
    recorded: Mapping[RecordKey, MeasureResult] | None = None,
    compile: str = "",
    overlap: str = "always",
    token_file: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Runner:
    """A runner of `kind` "ray", "local" or "replay".

    threads: of the measured kernels; every request must ask for the same count.
    target: what candidates are compiled for; this machine when not given.
    numerics: the name of those that their outputs are checked under.
    slots, builders: per node; builders default to one for each core that does not time.
    retries: how often a request is tried again after its worker was lost.
    memory_bytes: limit of a worker's address space, 0 for three quarters of the memory.
    address: "local" starts Ray on this machine alone, anything else joins that cluster.
    recorded: what a replay runner answers, by `replay_runner.record_key`.
    compile: path `module:function` of the build step, for tests.
    overlap: whether cores build while others time: "always", "never" (they take turns), or "auto",
    which asks `measure.farm.overlap` on every node.
    token_file: the token of a Ray cluster that asks for one.
    tell: is told in a sentence what "auto" found here.
    Raises MeasureError for an unknown kind, too few cores, or when Ray does not start.
    """
    if kind == "replay":
        return ReplayRunner(recorded if recorded is not None else {})
    if kind not in ("ray", "local"):
        raise MeasureError(f"no runner {kind!r}", hint="there are: ray, local, replay")
    plan = plan_slots(available_cores(), threads, slots=slots, builders=builders)
    if kind == "local" or address == "local":
        from measure.farm.overlap import settle_overlap  # brings the compiler along

        plan = settle_overlap(plan, overlap, tell)
    settings = WorkerSettings(
        cores=plan.slots[0],
        threads=threads,
        target=(target or host_target()).to_json(),
        scratch=str(make_folder("scratch")),
        numerics=numerics,
        compile=compile,
        memory_bytes=memory_bytes,
    )
    if kind == "local":
        return LocalRunner(settings, plan, retries=retries)
    from measure.farm.ray_runner import RayRunner  # importing ray takes a second

    return RayRunner(
        settings,
        plan,
        address=address,
        builders=builders,
        retries=retries,
        overlap=overlap,
        token_file=token_file,
    )
