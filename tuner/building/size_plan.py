"""Size plans in the database: what a job found for a model's range of sizes, and its programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.kernel_report import TUNED
from tunefarm.compiler.schedule.schedule import ChooseSchedule, Schedule, ScheduleChoice
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.signature import AxisSource
from tunefarm.configs.settings import Settings
from tunefarm.db.store import Store
from tunefarm.tuner.building.record import keep_plan
from tunefarm.tuner.records.applicable_records import applicable_plan
from tunefarm.tuner.records.size_ranges import SizePlan, SizeRange


@dataclass(frozen=True, slots=True)
class RangeProgram:
    """A program of one range: its guards, and what chooses its schedules."""

    guards: tuple[SizeGuard, ...]
    choose: ChooseSchedule | None


def record_size_plan(
    store: Store, plan: SizePlan, name: str, model_hash: str, settings: Settings, target: Target
) -> None:
    """Keep what was found for a model, by its graph as it was imported, under these settings.

    Raises DatabaseError.
    """
    keep_plan(store, _kind(settings), plan.to_json(), name, model_hash, settings, target)


def size_plan(
    store: Store | None,
    model_hash: str,
    settings: Settings,
    target: Target,
    *,
    accept_nominees: bool = False,
) -> tuple[SizePlan | None, tuple[str, ...]]:
    """What was last found for a model under these settings, None if nothing, or nothing to gain;
    and what a build is to say that leaves a plan.

    One that was found on another CPU, or comes from elsewhere, only with `accept_nominees`.
    """
    if store is None:
        return None, ()
    threads = settings.compile.threads
    standing = applicable_plan(store, model_hash, target, threads, _kind(settings))
    found = standing.taken(accept_nominees)
    if found is None and standing.nominee is not None:
        cpu = standing.nominee.cpu
        note = (
            f"the recorded ranges of sizes were{f' chosen on {cpu} and' if cpu else ''} not "
            "confirmed on this CPU: one program serves all sizes; tune MODEL measures ranges, "
            "--accept-nominees applies them as they are"
        )
        return None, (note,)
    if found is None:
        return None, ()
    try:
        plan = SizePlan.from_json(found.plan)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None, ()
    return (plan if len(plan.ranges) > 1 else None), ()


def range_programs(
    plan: SizePlan | None,
    graph: Graph,
    guards: Sequence[SizeGuard],
    choose: ChooseSchedule | None,
) -> list[RangeProgram]:
    """The programs of a graph: one for each range of the plan, or the only one without a plan.

    `guards` are those that all of them have, `choose` gives the schedules that are applied anyway.
    """
    if plan is None:
        return [RangeProgram(tuple(guards), choose)]
    axes = [source for source in graph.signature.sources if isinstance(source, AxisSource)]
    found = []
    for item in plan.ranges:
        own = [
            SizeGuard(axis.symbol.name, axis.input, axis.axis, *item.bounds[axis.symbol.name])
            for axis in axes
            if axis.symbol.name in item.bounds
        ]
        found.append(RangeProgram((*guards, *own), _choose_for(item, choose)))
    return found


def _choose_for(item: SizeRange, choose: ChooseSchedule | None) -> ChooseSchedule:
    """Schedules of the range where it has its own, else those that are applied anyway."""

    def chosen(kernel: FusedKernel) -> ScheduleChoice | None:
        applied = None if choose is None else choose(kernel)
        own = item.schedules.get(workload_key(kernel))
        if own is None:
            return applied
        try:
            schedule = Schedule.from_json(own)
        except ScheduleError:
            return applied
        return ScheduleChoice(schedule, TUNED, None, None)

    return chosen


def _kind(settings: Settings) -> str:
    """What size plans are recorded under: no choice of precisions has that name."""
    return f"{settings.compile.numerics} by size"
