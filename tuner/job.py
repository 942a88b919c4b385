"""A job, from a model to schedules that are worth keeping. Its phases, as `tune_model` has them:

import_model      ONNX file -> graph -> distinct kernels        (measure.sandbox, compiler)
read_history      what the database knows of other kernels      (tuner.model)
make_tasks        a kernel -> its space, its strategy           (tuner.search)
Job.register      the job's record; what earlier runs measured
Job.prepare       the untuned model, built and run once
Job.choose_plans  what the graph decides, measured; the tasks are its kernels   (tuner.plans)
Job.search        proposals -> measurements -> finalists        (tuner.search, tuner.confirm)
Job.confirm       the whole model with the former and the new schedules, at several sizes
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from compiler.errors import MeasureError
from compiler.graph.ir import Graph
from compiler.graph.serialize import structural_hash
from compiler.plan.graph_plan import RULES
from compiler.runtime.check_target import can_run
from compiler.runtime.executable import Executable
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.target import Target, host_target
from compiler.types.numerics import Numerics
from configs.settings import Settings
from db import queries
from db.records import JobTask, TargetRecord, TaskKey, TrialRecord, WorkloadRecord
from db.store import Store
from db.work import close_lost_jobs
from measure.compare import LogRatio
from measure.farm.runner import CallsNodes, Runner
from measure.machine import fingerprint
from measure.sandbox.node_kind import kind_of
from tuner.building.report import BuildReport
from tuner.building.size_plan import record_size_plan
from tuner.confirm.applied_graph import with_graphs
from tuner.confirm.elsewhere import compare_elsewhere
from tuner.confirm.finalists import Finalists, Settled, refresh
from tuner.confirm.latency import Agree, ModelLatency
from tuner.confirm.model_times import times_of_job, with_kernels, with_roof, with_steps
from tuner.confirm.models_at_sizes import confirm_plan, seconds_at
from tuner.confirm.placement import PlacementCheck
from tuner.confirm.size_race import SizeRace, applied_schedules
from tuner.confirm.whole_model import (
    CompareSpecs,
    Confirmed,
    ModelBuilds,
    agreement,
    compare_here,
    confirm_model,
)
from tuner.interrupt import Interrupt, interruptible
from tuner.job_request import MakeRunner
from tuner.model.cost_model import BoostedTrees, TrainingData
from tuner.plans.job_plans import JobPlans
from tuner.records.job_command import JobCommand
from tuner.records.model_latencies import Conditions, record_latency
from tuner.records.size_ranges import SizePlan, SizePoint, points_of, searched_points
from tuner.records.trials import unusable
from tuner.reports.progress import Progress
from tuner.reports.report import TaskStatus, format_time
from tuner.result import Outcome, TrialCounts, kernel_sums
from tuner.search import monitor as phases
from tuner.search.budget import Budget, End, Limits
from tuner.search.measuring import capacities_of, off_the_slots, timing_options
from tuner.search.monitor import Monitor
from tuner.search.patience import DatabasePatience
from tuner.search.placements import model_placements
from tuner.search.session import Overhead, SessionOptions, TuningSession
from tuner.search.standings import Estimate
from tuner.search.tasks import TuningTask
from tuner.search.time_plan import COMPARISON_SECONDS, TimePlan

MakeTasks: TypeAlias = Callable[[JobPlans], tuple[list[TuningTask], list[TrainingData]]]
"""Makes a job's tasks under its plans, and what is known of other kernels."""


@dataclass(slots=True)
class Job:
    """One run of the tuner on one model: its parts, and the phases in order.

    `others` are targets beside the first, each with tasks of its own. `built_from` are the hash of
    the model and the settings that a build begins with, where the graph is made from these.
    `remake` makes the tasks, and what is known of others, anew for the plans that were chosen.
    """

    graph: Graph
    settings: Settings
    target: Target
    store: Store
    cost_model: BoostedTrees
    tasks: list[TuningTask]
    progress: Progress
    make_runner: MakeRunner
    started: float
    others: tuple[Target, ...] = ()
    background: list[TrainingData] = field(default_factory=list)
    built_from: tuple[str, Settings] | None = None
    remake: MakeTasks | None = None
    monitor: Monitor = field(default_factory=Monitor)
    numerics: Numerics | None = None
    """Those that the settings name if None."""
    id: str = ""
    model_name: str = ""
    measured: int = 0
    seen: int = 0  # the last trial that the tasks know of
    settled: list[Settled] = field(default_factory=list)
    claims: dict[TaskKey, Estimate] = field(default_factory=dict)
    outcomes: dict[TaskKey, Outcome] = field(default_factory=dict)
    placements: dict[TaskKey, LogRatio] = field(default_factory=dict)
    known: TrialCounts = field(default_factory=TrialCounts)  # before this job
    budget: Budget = field(init=False)
    patience: DatabasePatience = field(init=False)
    time: TimePlan = field(init=False)
    overhead: Overhead = field(default_factory=Overhead)
    untuned: dict[str, ExecutableSpec] = field(default_factory=dict)  # by the target's key
    points: list[SizePoint] = field(default_factory=list)  # of a model with run-time sizes
    size_plans: dict[str, SizePlan] = field(default_factory=dict)  # by the target's key
    confirmed_elsewhere: dict[str, Confirmed] = field(default_factory=dict)  # the same
    plans: JobPlans | None = None  # None: the rules decide

    def __post_init__(self) -> None:
        self.patience = DatabasePatience(self.progress)
        self.time = TimePlan(self.settings.search.minutes, self.started)
        search = self.settings.search
        self.budget = Budget(
            Limits(
                trials=search.total_trials,
                trials_per_task=search.trials_per_task,
                patience=search.patience,
                min_gain=search.min_gain,
                nothing_to_win=search.nothing_to_win,
            )
        )

    def register(self, model_name: str, command: JobCommand | None = None) -> None:
        """Record the job, with the command that began it, and its workloads, and take over what
        earlier runs measured."""
        self.model_name = model_name
        self.store.add([TargetRecord(target.key, target.to_json()) for target in self.targets])
        tasks = self._recorded_tasks()
        settings = self.settings.to_json()
        settings["database"] = {"url": self.store.name}  # without a password
        if command is not None:
            settings = command.kept_in(settings)
        model_hash = structural_hash(self.graph)
        self._say_what_is_lost(model_hash)
        self.id = self.store.start_job(model_name, model_hash, settings, tasks).id
        self.monitor.begin(self.store, self.id, model_name)
        self._resume()
        known = self.known.trials
        greatest = [task for task in self.tasks if not task.sizes]
        calls = sum(task.progress.occurrences for task in greatest)
        text = f"{len(greatest)} distinct kernels in {calls} calls"
        if smaller := len(self.tasks) - len(greatest):
            text += f", {smaller} more for smaller sizes"
        self.progress.message(f"{text}, {known} trials known from earlier runs" if known else text)
        if self.store.upgrade_note:
            self.progress.message(self.store.upgrade_note)
        notes = [note for task in self.tasks[:1] for note in unusable(self.store, task.key)]
        for note in notes:
            self.progress.message(note)

    def _recorded_tasks(self) -> list[JobTask]:
        """The tasks as the job's record has them; their workloads are recorded."""
        self.store.add(
            WorkloadRecord(task.key.workload, task.name, task.kernel_json) for task in self.tasks
        )
        return [JobTask(task.key, task.progress.occurrences) for task in self.tasks]

    def _resume(self) -> None:
        """Take over what was measured of the tasks by earlier jobs, and for a plan of this one."""
        self.seen = queries.last_trial(self.store)
        own: list[TrialRecord] = []
        for task in self.tasks:
            found = queries.best(self.store, task.key)
            settled = None if found is None else found[1]
            trials = queries.trials(self.store, task.key)
            task.resume(trials, settled)
            own += [trial for trial in trials if trial.job == self.id]
            if found is not None and math.isfinite(task.confirmed_latency):
                task.settle(found[0])
        lost = sum(trial.is_lost_to_noise for trial in own)
        failures = sum(not (trial.is_ok or trial.is_lost_to_noise) for trial in own)
        self.known = TrialCounts.of(self.statuses()).since(TrialCounts(len(own), lost, failures))

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets of the job."""
        return self.target, *self.others

    def tasks_for(self, target: Target) -> list[TuningTask]:
        """The tasks of one of the targets."""
        return [task for task in self.tasks if task.key.target == target.key]

    def is_here(self, target: Target) -> bool:
        """Whether whole models for the target can be measured on this machine."""
        if self.others:
            return kind_of(host_target(), self.targets) == target
        return can_run(target)

    def _say_what_is_lost(self, model_hash: str) -> None:
        """Close the jobs whose processes are gone; say so of those that tuned this model."""
        for lost in close_lost_jobs(self.store):
            if lost.model_hash == model_hash:
                where = f" ({lost.where} is no more)" if lost.where else ""
                self.progress.message(
                    f"a former job, started {format_time(lost.started)} UTC, was lost{where}: "
                    "this one goes on from what it recorded"
                )

    def _enter(self, phase: str) -> None:
        self.monitor.enter(phase, self.statuses(), self.time.left)

    def statuses(self, end: End | None = None) -> list[TaskStatus]:
        """Where every task stands; `end` is why those ended that had no reason of their own."""
        reason = "" if end is None else end.value
        found = []
        for task in self.tasks:
            status = task.status(self.budget)
            status = replace(
                status, ended=status.ended or reason, placement=self.placements.get(task.key)
            )
            found.append(self.outcomes.get(task.key, Outcome()).told_in(status))
        return found

    def prepare(self) -> None:
        """Build the untuned model: it is compared with, and tells how long builds and runs take."""
        begin = time.monotonic()
        self._enter(phases.PREPARING)
        if self.graph.signature is not None:
            self.points = points_of(self.graph.signature)
        if len(self.points) > 1:
            self.time.keep_for_sizes(len(self.points) * len(self.tasks), len(self.points))
        for target in self.targets:
            untuned, _ = replace(self._builds(target), plan=RULES).compile(target, None)
            self.untuned[target.key] = untuned
            self._place(target)
        self.time.build_seconds = time.monotonic() - begin
        self.time.elsewhere = sum(not self.is_here(target) for target in self.targets)
        for target in filter(self.is_here, self.targets):
            model = Executable(self.untuned[target.key].of_tensors())
            self.time.run_seconds += seconds_at(model)
            if len(self.points) > 1:
                self._weigh(model, self.tasks_for(target))

    def _place(self, target: Target) -> None:
        """Have kernels timed where the model's calls have their buffers, under the plan."""
        untuned, builds = self.untuned[target.key], self._builds(target)
        if builds.plan != RULES:
            untuned, _ = builds.compile(target, None)
        tasks = self.tasks_for(target)
        placements = model_placements(untuned, {task.built_as: task.kernel for task in tasks})
        for task in tasks:
            task.placements = placements[task.built_as]

    def choose_plans(self) -> bool:
        """Search what the graph decides, for each target that can be measured here, and make the
        tasks of what was chosen; False if it was interrupted."""
        if self.plans is None or not self.plans.are_searched or self.remake is None:
            return True
        self._enter(phases.PLANNING)
        here = [target for target in self.targets if self.is_here(target)]
        if len(here) < len(self.targets):
            self.progress.message("plan: the rules decide for machines of another kind than this")
        changed = []
        with interruptible() as interrupt:
            for target in here:
                agree = agreement(task.kernel for task in self.tasks_for(target))
                seconds = self.time.planning_seconds
                if self.plans.search(
                    target,
                    self._builds(target),
                    compare_here(COMPARISON_SECONDS, agree),
                    self.make_runner,
                    interrupt,
                    job=self.id,
                    name=self.model_name,
                    seconds=None if seconds is None else seconds / len(here),
                ):
                    changed.append(target)
            if interrupt.asked:
                return False
        self.measured = self.plans.measured
        if changed or self.measured:
            self.tasks, self.background = self.remake(self.plans)
            self.store.replace_tasks(self.id, self._recorded_tasks())
            self._resume()
            for target in self.targets:
                self._place(target)
        for target in changed:
            self.progress.message(f"plan: {self.plans.told(target)}")
        if self.plans.chosen:
            self.time.keep_for_plan()
        return True

    def _weigh(self, model: Executable, tasks: Sequence[TuningTask]) -> None:
        """Have each size weigh the same: a share of the model's time at it is worth as much."""
        points = searched_points(self.points)
        seconds = {str(point): seconds_at(model, point.symbols) for point in points}
        greatest = seconds[str(points[-1])]
        for task in tasks:
            if task.sizes:
                task.progress.weight = greatest / seconds[task.sizes]

    def search(self) -> End:
        """Search, then confirm the best; returns why it ended. No runner is started for nothing."""
        finalists = Finalists(self.store, job=self.id, seed=self.settings.search.seed)
        elsewhere = PlacementCheck(self.store, job=self.id, seed=self.settings.search.seed)
        progress = [task.progress for task in self.tasks]
        if self.budget.next_task(progress, 0.0) is None and not finalists.wanted(self.tasks):
            return self._end()
        with (
            interruptible() as interrupt,
            self.make_runner(self.settings, self.target, self.progress.message) as runner,
            off_the_slots(self.settings),
        ):
            self.monitor.watch(runner)
            session = self._session(runner)
            interrupt.tell(session.stop)
            interrupt.tell(finalists.stop)
            interrupt.tell(elsewhere.stop)
            interrupt.tell(self.patience.stop)
            self.progress.start()
            self._enter(phases.SEARCHING)
            try:
                end = session.run()
                if not interrupt.asked:
                    timing = timing_options(self.settings)
                    self.progress.message("measuring the fastest of each kernel side by side")
                    self._enter(phases.FINALISTS)
                    finalists.run(
                        self.tasks,
                        runner,
                        timing,
                        self.time.finalists_are_late,
                        session.show,
                        thorough=end is not End.TIME and self.time.left is not None,
                    )
                    elsewhere.run(finalists.settled, runner, timing, self.time.finalists_are_late)
                    self._race_at_sizes(finalists.settled, runner, interrupt)
                if not interrupt.asked:
                    self._confirm_elsewhere(finalists.settled, runner)
            finally:
                self.progress.stop()
                self.measured += session.measured + finalists.measured
                self.overhead = session.overhead
                self.settled, self.claims = finalists.settled, finalists.claims
                self.placements = elsewhere.ratios
            return End.INTERRUPTED if interrupt.asked else end

    def _race_at_sizes(
        self, settled: Sequence[Settled], runner: Runner, interrupt: Interrupt
    ) -> None:
        """Find which schedules serve which sizes, of a model that has a range of them."""
        if len(self.points) < 2:
            return
        self.progress.message(f"measuring the fastest at {len(self.points)} sizes")
        self._enter(phases.SIZES)
        self.time.begin_sizes()
        for target in self.targets:
            race = SizeRace(self.points, job=self.id, seed=self.settings.search.seed)
            interrupt.tell(race.stop)
            tasks = self.tasks_for(target)
            race.run(
                tasks,
                applied_schedules(self.store, tasks, settled),
                runner,
                timing_options(self.settings),
                self.time.finalists_are_late,
            )
            if (plan := race.plan()) is not None:
                self.size_plans[target.key] = plan

    def confirm(self, target: Target | None = None) -> tuple[ModelLatency | None, BuildReport]:
        """Measure the whole model with the former and the new schedules, and keep the better set.

        That of one target, of the first if None. What the finalists settled is in the database only
        after this. A model for machines of another kind was measured by a node, while there were
        any; else what they settled stays.
        """
        target = self.target if target is None else target
        self.progress.message("building the tuned model")
        self._enter(phases.CONFIRMING)
        tasks = self.tasks_for(target)
        agree = agreement(task.kernel for task in tasks)
        found = self.confirmed_elsewhere.get(target.key)
        if found is None:
            compare = None
            if self.is_here(target):
                self._confirm_plan(target, agree)
                compare = compare_here(self.time.comparison_seconds, agree)
            found = self._confirmed(target, self.settled, compare)
        if self.plans is not None and found.latency is not None and found.latency.is_slower:
            self.plans.give_up(target, self.model_name)
        self.store.add(found.bests)
        self._keep_plan(target, agree)
        refresh(tasks, self.store)
        self.outcomes |= {task.key: self._outcome(task) for task in tasks}
        self._keep_latency(target, found)
        return found.latency, found.report

    def _confirm_plan(self, target: Target, agree: Agree) -> None:
        """Have the tuned model decide once more whether the plan is faster than the rules."""
        if self.plans is None or not self.plans.are_searched:
            return
        compare = compare_here(self.time.plan_comparison_seconds, agree)
        bests = [item.best for item in self.settled if item.task.key.target == target.key]
        self.plans.confirm(target, self._builds(target), compare, bests, self.model_name)

    def _keep_latency(self, target: Target, found: Confirmed) -> None:
        """Record how long the model takes, and each of its steps, if it was measured."""
        if found.latency is None:
            return
        is_here = self.is_here(target)
        told = zip(self.tasks, self.statuses(), strict=True)
        sums = kernel_sums(status for task, status in told if task.key.target == target.key)
        times = times_of_job(found.latency, *sums)
        times = with_kernels(times, self.store, [use.report for use in found.report.kernels])
        model = Executable(found.spec.of_tensors()) if is_here else None
        times = with_steps(times, found.spec, model, self.time.profile_seconds)
        plans = self._builds(target).plan, self._former_builds(target).plan
        times = with_graphs(times, self.graph, self.numerics, target, self.settings, plans)
        if is_here:
            times = with_roof(times, self.settings, target)
        model_hash, settings = self.built_from or (structural_hash(self.graph), self.settings)
        conditions = Conditions.of(settings, model_hash, target)
        where = fingerprint() if is_here else {"cpu": target.cpu}
        record_latency(self.store, times, self.model_name, conditions, "job", where, self.id)

    def _confirmed(
        self, target: Target, settled: Sequence[Settled], compare: CompareSpecs | None
    ) -> Confirmed:
        own = [item for item in settled if item.task.key.target == target.key]
        untuned = self.untuned[target.key]  # prepare comes first
        tell = self.progress.message
        return confirm_model(
            self._builds(target), target, untuned, own, compare, tell, self._former_builds(target)
        )

    def _confirm_elsewhere(self, settled: Sequence[Settled], runner: Runner) -> None:
        """Have nodes measure the whole model for targets that this machine is not."""
        for target in self.targets:
            if self.is_here(target) or not isinstance(runner, CallsNodes):
                continue
            self.progress.message(f"building the tuned model for {target.cpu}")
            agree = agreement(task.kernel for task in self.tasks_for(target))

            def compare(
                specs: Sequence[ExecutableSpec],
                runner: CallsNodes = runner,
                target: Target = target,
                agree: Agree = agree,
            ) -> ModelLatency:
                return compare_elsewhere(runner, target, specs, COMPARISON_SECONDS, agree)

            try:
                found = self._confirmed(target, settled, compare)
            except MeasureError as error:
                self.progress.message(f"the whole model is not measured for it: {error.message}")
                continue
            self.confirmed_elsewhere[target.key] = found

    def _keep_plan(self, target: Target, agree: Agree) -> None:
        """Record which schedules serve which sizes, measured with the whole model if possible."""
        plan = self.size_plans.get(target.key)
        if plan is None:
            return
        if self.is_here(target):
            self.progress.message(f"measuring the whole model at {len(self.points)} sizes")
            untuned = self.untuned[target.key]
            points, seconds = self.points, self.time.at_sizes_seconds
            plan = confirm_plan(self._builds(target), target, untuned, plan, points, seconds, agree)
            self.size_plans[target.key] = plan
        model_hash, settings = self.built_from or (structural_hash(self.graph), self.settings)
        record_size_plan(self.store, plan, self.model_name, model_hash, settings, target)

    def _builds(self, target: Target) -> ModelBuilds:
        plan = RULES if self.plans is None else self.plans.of(target)
        return ModelBuilds(self.graph, self.settings, self.numerics, self.store, plan)

    def _former_builds(self, target: Target) -> ModelBuilds:
        """Builds as they were before the job."""
        former = None if self.plans is None else self.plans.recorded.get(target.key)
        return replace(self._builds(target), plan=RULES if former is None else former.plan)

    def _outcome(self, task: TuningTask) -> Outcome:
        """What was claimed of a task and what is confirmed, as times over the default's.

        Where nobody met because there was no choice, both are what is applied as before.
        """
        found = queries.best(self.store, task.key)
        ratios = (1.0,) * 3 if found is None else (found[0].ratio, found[0].low, found[0].high)
        claim = self.claims.get(task.key)
        return Outcome(ratios[0] if claim is None else math.exp(claim.mean), *ratios)

    def _session(self, runner: Runner) -> TuningSession:
        """The search, with the time that is left for it."""
        minutes = self.time.search_minutes(len(self.tasks))
        self.budget = Budget(replace(self.budget.limits, minutes=minutes))
        return TuningSession(
            self.tasks,
            runner,
            self.store,
            self.cost_model,
            self.budget,
            SessionOptions(self.settings.search.batch_size, timing_options(self.settings)),
            job=self.id,
            progress=self.progress,
            monitor=self.monitor,
            background=self.background,
            seen=self.seen,
            capacities=capacities_of(runner) if self.others else None,
        )

    def _end(self) -> End:
        progress = [task.progress for task in self.tasks]
        return self.budget.end(progress, time.monotonic() - self.started)
