"""The one place where a runner is chosen: each has a name, and a file `NAME_runner.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.target import host_target
from tunefarm.configs.layers import refuse_unknown
from tunefarm.configs.temporary_folders import make_folder
from tunefarm.measure.cpus import Cpus, usable_cpus
from tunefarm.measure.farm.local_runner import LocalRunner
from tunefarm.measure.farm.ray_address import check_address
from tunefarm.measure.farm.runner import Runner, RunnerOptions
from tunefarm.measure.farm.slots import SlotPlan, describe, plan_slots
from tunefarm.measure.sandbox.node_kind import kind_of, this_node
from tunefarm.measure.sandbox.worker_settings import WorkerSettings


def create_runner(name: str, options: RunnerOptions | None = None) -> Runner:
    """The runner of that name (see `RUNNERS`).

    Raises SettingsError for an unknown name, MeasureError for too few cores and when Ray does not
    start.
    """
    refuse_unknown("measure.runner", name, list(RUNNERS))
    return RUNNERS[name](options or RunnerOptions())


def check_runner(name: str, options: RunnerOptions) -> None:
    """Raise what `create_runner` would, as far as it can be told without starting anything."""
    refuse_unknown("measure.runner", name, list(RUNNERS))
    if options.address == "local":
        check_alone(options)
        _plan(options)
    elif name == "ray":
        check_address(options.address)


def check_alone(options: RunnerOptions) -> None:
    """Raise MeasureError if this machine alone is to measure for a target that it is not."""
    if len(options.targets) < 2:
        return  # whoever names one target means it
    node = this_node(options.probe)
    kind = kind_of(node, options.targets)
    others = ", ".join(target.cpu for target in options.targets if target != kind)
    here = f"it is {node.cpu}" if kind is None else f"it stands for {kind.cpu}"
    raise MeasureError(
        f"this machine cannot measure for {others}: {here}",
        hint="--address joins a cluster that has a node for each target",
    )


def _local(options: RunnerOptions) -> Runner:
    check_alone(options)
    plan = _settled(options)
    return LocalRunner(
        _settings(options, plan), plan, retries=options.retries, notify=options.notify
    )


def _ray(options: RunnerOptions) -> Runner:
    if options.address == "local":
        check_alone(options)
    plan = _settled(options) if options.address == "local" else _plan(options)
    from tunefarm.measure.farm.ray_runner import RayRunner  # importing ray takes a second

    return RayRunner(_settings(options, plan), plan, options)


RUNNERS: Mapping[str, Callable[[RunnerOptions], Runner]] = {"ray": _ray, "local": _local}


def _plan(options: RunnerOptions, cpus: Cpus | None = None) -> SlotPlan:
    return plan_slots(
        cpus or usable_cpus(), options.threads, slots=options.slots, builders=options.builders
    )


def _settled(options: RunnerOptions) -> SlotPlan:
    from tunefarm.measure.farm.overlap import resolve_overlap  # brings the compiler along

    cpus = usable_cpus()
    plan = resolve_overlap(_plan(options, cpus), options.overlap, options.notify)
    if options.notify is not None:
        options.notify(describe(plan, cpus))
    return plan


def _settings(options: RunnerOptions, plan: SlotPlan) -> WorkerSettings:
    return WorkerSettings(
        cores=plan.slots[0],
        threads=options.threads,
        target=(options.targets or (host_target(),))[0].to_json(),
        scratch=str(make_folder("scratch")),
        compile=options.compile,
        memory_bytes=options.memory_bytes,
        probe=options.probe,
    )
