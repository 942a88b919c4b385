"""The whole models of a job: builds for each of its targets, which have the last word.

prepare             the untuned models, built and run once; where their calls have their buffers
confirm_elsewhere   those for other kinds of machines, measured by nodes of a cluster
confirm             with the former and the new schedules, at several sizes     (tuner.confirm)
keep_latency        how long the model takes, recorded
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tunefarm.compiler.errors import CoresBusyError, MeasureError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.machine.check_target import can_run
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings
from tunefarm.db.store import Store
from tunefarm.measure.farm.runner import CallsNodes
from tunefarm.measure.machine import fingerprint
from tunefarm.measure.sandbox.node_kind import kind_of
from tunefarm.tuner.building.size_plan import record_size_plan
from tunefarm.tuner.confirm.exchange import InModel, exchange_kernels
from tunefarm.tuner.confirm.finalists import Settled
from tunefarm.tuner.confirm.kernel_choices import KernelChoices, defaults_for_claims
from tunefarm.tuner.confirm.latency import Agree, ModelLatency
from tunefarm.tuner.confirm.model_times import (
    times_of_job,
    with_kernels,
    with_roof,
    with_steps,
)
from tunefarm.tuner.confirm.placement import cache_states, model_placements
from tunefarm.tuner.confirm.size_race import confirm_plan, seconds_at
from tunefarm.tuner.confirm.whole_model import (
    CompareSpecs,
    Confirmed,
    ConfirmModel,
    ModelBuilds,
    agreement,
    compare_elsewhere,
    compare_here,
    or_untuned,
    unmeasured,
)
from tunefarm.tuner.records.model_latencies import Conditions, record_latency
from tunefarm.tuner.records.size_ranges import SizePlan, SizePoint, points_of, searched_points
from tunefarm.tuner.search.tasks import TuningTask, tasks_for
from tunefarm.tuner.search.time_plan import COMPARISON_SECONDS, TimePlan


@dataclass(slots=True)
class JobModels:
    """One model as a job builds it, for each target: sizes, and what runs interleaved.

    `name` is what people call it. `built_from` are the hash of the model as it was imported and the
    settings that a build of it begins with. `time` is what the job has left for its phases.
    """

    name: str
    graph: Graph
    settings: Settings
    targets: tuple[Target, ...]
    store: Store
    built_from: tuple[str, Settings]
    time: TimePlan
    notify: Callable[[str], None]
    numerics: Numerics | None = None
    """Those that the settings name if None."""
    points: list[SizePoint] = field(init=False)
    """Sizes that stand for all: one without symbols where shapes are static."""
    untuned: dict[str, ExecutableSpec] = field(default_factory=dict)  # by the target's key
    size_plans: dict[str, SizePlan] = field(default_factory=dict)  # the same
    confirmed_elsewhere: dict[str, Confirmed] = field(default_factory=dict)  # the same

    def __post_init__(self) -> None:
        self.points = points_of(self.graph.signature)

    def is_here(self, target: Target) -> bool:
        """Whether whole models for the target can be measured on this machine."""
        if len(self.targets) > 1:
            return kind_of(host_target(), self.targets) == target
        return can_run(target)

    def prepare(self, tasks: Sequence[TuningTask]) -> None:
        """Build the untuned models: they are compared with, and tell how long builds and runs take.

        `tasks` are all of the job: they are told where their kernels have their buffers, and what
        they weigh at each size.
        """
        begin = time.monotonic()
        if (points := len(self.points)) > 1:
            self.time.keep_for_sizes(points * len(tasks), points)
        for target in self.targets:
            self.untuned[target.key], _ = self._builds().compile(target, None)
        self.place(tasks)
        self.time.build_seconds = time.monotonic() - begin
        self.time.exchanges = self.exchanges_kernels and any(map(self.is_here, self.targets))
        self.time.elsewhere = sum(not self.is_here(target) for target in self.targets)
        for target in filter(self.is_here, self.targets):
            model = Executable(self.untuned[target.key].of_tensors())
            self.time.run_seconds += seconds_at(model)
            if len(self.points) > 1:
                self._weigh(model, tasks_for(tasks, target))

    def _weigh(self, model: Executable, tasks: Sequence[TuningTask]) -> None:
        """Have each size weigh the same: a share of the model's time at it is worth as much."""
        points = searched_points(self.points)
        seconds = {str(point): seconds_at(model, point.symbols) for point in points}
        greatest = seconds[str(points[-1])]
        for task in tasks:
            if task.sizes:
                task.progress.weight = greatest / seconds[task.sizes]

    def place(self, tasks: Sequence[TuningTask]) -> None:
        """Have kernels timed where the models' calls have their buffers, and as they find them in
        the caches."""
        for target in self.targets:
            untuned = self.untuned[target.key]
            own = tasks_for(tasks, target)
            placements = model_placements(untuned, {task.built_as: task.kernel for task in own})
            states = cache_states(untuned)
            for task in own:
                task.placements = placements[task.built_as]
                task.cache_state = states.get(task.built_as, {})

    def confirm(
        self,
        target: Target,
        tasks: Sequence[TuningTask],
        settled: Sequence[Settled],
        *,
        job: str | None = None,
    ) -> Confirmed:
        """Measure the model for a target with the former and the new schedules; record the better
        set, and which schedules serve which sizes.

        A model for machines of another kind was measured by a node, while there were any; else what
        was settled stays. `job` is the id of the record.
        """
        agree = _agree(tasks, target)
        found = self.confirmed_elsewhere.get(target.key)
        why_not = "the whole model was not measured"
        if found is None and self.is_here(target):
            try:
                found = self._confirmed_here(target, tasks, settled, agree, job)
            except CoresBusyError as error:
                why_not = error.message
                self.notify(f"the whole model is not measured: {why_not}")
        if found is None:
            own = _settled_for(settled, target)
            claimed = defaults_for_claims(self.store, tasks_for(tasks, target), own, job)
            found = unmeasured(self._builds(), target, own, claimed, why_not)
        self.store.add(found.bests)
        return self._at_sizes(target, tasks, settled, found, agree, job)

    def confirm_elsewhere(
        self,
        target: Target,
        tasks: Sequence[TuningTask],
        settled: Sequence[Settled],
        runner: CallsNodes,
        *,
        job: str | None = None,
    ) -> None:
        """Have a node measure the model for a target that this machine is not; `job` is the id of
        the record."""
        self.notify(f"building the tuned model for {target.cpu}")
        agree = _agree(tasks, target)

        def compare(specs: Sequence[ExecutableSpec]) -> ModelLatency:
            return compare_elsewhere(runner, target, specs, COMPARISON_SECONDS, agree)

        confirming = self._confirming(target, tasks, settled, compare, job)
        try:
            self.confirmed_elsewhere[target.key] = replace(
                confirming, why_not="the model was measured by a node of a cluster"
            ).run()
        except MeasureError as error:
            self.notify(f"the whole model is not measured for it: {error.message}")

    def _confirmed_here(
        self,
        target: Target,
        tasks: Sequence[TuningTask],
        settled: Sequence[Settled],
        agree: Agree,
        job: str | None,
    ) -> Confirmed:
        def compare(specs: Sequence[ExecutableSpec]) -> ModelLatency:
            return compare_here(self.time.comparison_seconds, agree)(specs)

        def exchange(specs: Sequence[ExecutableSpec]) -> Mapping[str, InModel]:
            return exchange_kernels(specs, self.time.exchange_seconds, agree)

        confirming = self._confirming(target, tasks, settled, compare, job)
        if not self.exchanges_kernels:
            return replace(confirming, why_not="sizes are dynamic").run()
        return replace(confirming, exchange=exchange).run()

    @property
    def exchanges_kernels(self) -> bool:
        """Whether kernels can be exchanged in the running model: not where sizes are dynamic."""
        return self.graph.is_fixed

    def _confirming(
        self,
        target: Target,
        tasks: Sequence[TuningTask],
        settled: Sequence[Settled],
        compare: CompareSpecs,
        job: str | None,
    ) -> ConfirmModel:
        own, ours = _settled_for(settled, target), tasks_for(tasks, target)
        choices = None
        if len(self.points) < 2:  # else a range of sizes may have schedules of its own
            choices = KernelChoices(self.store, ours, own, job=job)
        return ConfirmModel(
            self._builds(),
            target,
            self.untuned[target.key],  # prepare comes first
            own,
            compare,
            self.notify,
            choices,
            defaults=defaults_for_claims(self.store, ours, own, job),
        )

    def _at_sizes(
        self,
        target: Target,
        tasks: Sequence[TuningTask],
        settled: Sequence[Settled],
        found: Confirmed,
        agree: Agree,
        job: str | None,
    ) -> Confirmed:
        """Record which schedules serve which sizes, measured with the whole model if possible; the
        untuned model where the tuned one is slower in the mean of these."""
        plan = self.size_plans.get(target.key)
        if plan is None:
            return found
        if self.is_here(target):
            self.notify(f"measuring the whole model at {len(self.points)} sizes")
            untuned = self.untuned[target.key]
            points, seconds = self.points, self.time.at_sizes_seconds
            builds = self._builds()
            try:
                plan = confirm_plan(builds, target, untuned, plan, points, seconds, agree)
            except CoresBusyError as error:
                self.notify(f"the whole model is not measured at these: {error.message}")
        if plan.is_slower:
            own, ours = _settled_for(settled, target), tasks_for(tasks, target)
            choices = KernelChoices(self.store, ours, own, job=job)
            untuned = self.untuned[target.key]
            found = or_untuned(found, choices, self._builds(), target, untuned, self.notify)
            if found.is_untuned:
                self.store.add(found.bests)
                plan = plan.untuned
        self.size_plans[target.key] = plan
        record_size_plan(self.store, plan, self.name, *self.built_from, target)
        return found

    def keep_latency(
        self, target: Target, found: Confirmed, kernels: tuple[float, float], *, job: str
    ) -> None:
        """Record how long the model takes, and each of its steps, if it was measured.

        `kernels` are the seconds of all kernels together, claimed and confirmed.
        """
        if found.latency is None:
            return
        is_here = self.is_here(target)
        times = times_of_job(found.latency, *kernels)
        times = with_kernels(times, self.store, [use.report for use in found.report.kernels])
        model = Executable(found.spec.of_tensors()) if is_here else None
        times = with_steps(times, found.spec, model, self.time.profile_seconds)
        if is_here:
            times = with_roof(times, self.settings, target)
        model_hash, settings = self.built_from
        conditions = Conditions.of(settings, model_hash, target)
        where = fingerprint() if is_here else {"cpu": target.cpu}
        record_latency(self.store, times, self.name, conditions, "job", where, job)

    def _builds(self) -> ModelBuilds:
        return ModelBuilds(self.graph, self.settings, self.numerics, self.store)


def _settled_for(settled: Iterable[Settled], target: Target) -> list[Settled]:
    return [item for item in settled if item.task.key.target == target.key]


def _agree(tasks: Iterable[TuningTask], target: Target) -> Agree:
    return agreement(task.kernel for task in tasks_for(tasks, target))
