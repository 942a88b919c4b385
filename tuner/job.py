"""A job, from a model to schedules that are worth keeping. Its phases, as `tune_model` has them:

import_model      ONNX file -> graph -> distinct kernels        (measure.sandbox, compiler)
read_history      what the database knows of other kernels      (tuner.model)
make_tasks        a kernel -> its space, its strategy           (tuner.search)
Job.register      the job's record; what earlier runs measured
Job.prepare       the untuned model, built and run once
Job.search        proposals -> measurements -> finalists        (tuner.search, tuner.confirm)
Job.confirm       the whole model with the former and the new schedules
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from compiler.graph.ir import Graph
from compiler.graph.serialize import structural_hash
from compiler.runtime.check_target import can_run
from compiler.runtime.executable import Executable
from compiler.runtime.executable_spec import ExecutableSpec
from compiler.schedule.choice import ChooseSchedule
from compiler.target import Target, host_target
from compiler.types.dtypes import DType
from compiler.types.extents import Shapes
from compiler.types.numerics import Numerics
from configs.settings import Settings
from db import queries
from db.records import BestRecord, JobState, JobTask, TargetRecord, TaskKey, WorkloadRecord
from db.store import Store
from db.work import close_lost_jobs
from measure.compare import LogRatio
from measure.farm.make_runner import check_runner
from measure.farm.runner import Runner
from measure.sandbox.import_model import import_model
from measure.sandbox.node_kind import kind_of
from tuner.building.apply_best import choose_from
from tuner.building.compile import compile_with
from tuner.building.lowered import LoweredModel
from tuner.building.report import BuildReport, build_report
from tuner.building.size_plan import record_size_plan
from tuner.confirm.finalists import Finalists, Settled, refresh
from tuner.confirm.latency import (
    COMPARISON,
    Agree,
    ModelLatency,
    aligned_inputs,
    compare_models,
    outputs_agree,
    outputs_near,
)
from tuner.confirm.placement import PlacementCheck
from tuner.confirm.size_race import SizeRace, applied_schedules
from tuner.from_settings import limits_of, target_of, targets_of
from tuner.interrupt import Interrupt, interruptible
from tuner.model.cost_model import BoostedTrees, TrainingData
from tuner.records.size_ranges import SizePlan, SizePoint, points_of
from tuner.records.trials import unusable
from tuner.reports.progress import Progress
from tuner.reports.report import TaskStatus, format_time
from tuner.result import Outcome, TargetResult, TrialCounts, TuneResult
from tuner.search.budget import Budget, End, Limits
from tuner.search.heartbeat import heartbeat
from tuner.search.make_tasks import make_tasks
from tuner.search.measuring import (
    capacities_of,
    off_the_slots,
    runner_of,
    runner_options,
    timing_options,
)
from tuner.search.patience import DatabasePatience
from tuner.search.placements import model_placements
from tuner.search.session import Overhead, SessionOptions, TuningSession, job_progress
from tuner.search.standings import Estimate
from tuner.search.strategy import check_strategy
from tuner.search.task_sources import known_of_others, task_source
from tuner.search.tasks import TuningTask
from tuner.search.time_plan import TimePlan

MakeRunner: TypeAlias = Callable[[Settings, Target, Callable[[str], None]], Runner]


def tune_model(
    model: str | os.PathLike[str],
    settings: Settings,
    *,
    shapes: Shapes | None = None,
    progress: Progress | None = None,
    make_runner: MakeRunner | None = None,
    started: float | None = None,
) -> TuneResult:
    """Tune a model's kernels into the settings' database; go on where an earlier run ended.

    Its minutes count from `started`, a moment of `time.monotonic`, or from now.
    Raises TunefarmError for a model that cannot be compiled, a database that cannot be used and a
    machine on which nothing can be measured. Ctrl-C ends it early with all results kept.
    """
    started = time.monotonic() if started is None else started
    check_job(settings)
    graph = import_model(model, shapes, limits_of(settings))
    lowered = LoweredModel(graph, Numerics.of(settings.compile.numerics))
    return tune_lowered(
        model, lowered, settings, progress=progress, make_runner=make_runner, started=started
    )


def check_job(settings: Settings) -> None:
    """Raise SettingsError, before a model is read, for what no job can be done with."""
    check_strategy(settings.search.sampler)
    check_runner(settings.measure.runner, runner_options(settings, target_of(settings)))


def tune_lowered(
    model: str | os.PathLike[str],
    lowered: LoweredModel,
    settings: Settings,
    *,
    progress: Progress | None = None,
    make_runner: MakeRunner | None = None,
    started: float | None = None,
) -> TuneResult:
    """As `tune_model`, of a model that was imported; `model` is what it is called."""
    started = time.monotonic() if started is None else started
    targets, graph = targets_of(settings), lowered.graph
    with Store.open(settings.database.url) as store:
        cost_model = BoostedTrees(settings.search.seed, settings.search.cost_model)
        numerics = lowered.numerics
        sources = [task_source(store, graph, numerics, target, settings) for target in targets]
        tasks = make_tasks(sources, settings, cost_model)
        job = Job(
            settings=settings,
            target=targets[0],
            others=targets[1:],
            numerics=numerics,
            store=store,
            cost_model=cost_model,
            tasks=tasks,
            background=known_of_others(sources, tasks[0].extract.layout, settings) if tasks else [],
            progress=Progress() if progress is None else progress,
            make_runner=runner_of if make_runner is None else make_runner,
            started=started,
        )
        store.patience = job.patience
        job.register(Path(model).name, graph)
        state: JobState = "failed"
        results: list[TargetResult] = []
        try:
            with heartbeat(store, job.id):
                job.prepare(graph)
                end = job.search()
                if end is not End.INTERRUPTED:
                    results = [TargetResult(t.cpu, *job.confirm(graph, t)) for t in targets]
            state = "interrupted" if end is End.INTERRUPTED else "finished"
        except KeyboardInterrupt:
            end, state = End.INTERRUPTED, "interrupted"
        finally:
            store.finish_job(job.id, state, job_progress(job.statuses()))
        seconds = time.monotonic() - started
        measured_here = (item for item in results if item.latency is not None)
        shown = next(measured_here, results[0] if results else None)
        return TuneResult(
            model=os.fspath(model),
            database=store.name,
            job=job.id,
            end=end,
            measured=job.measured,
            seconds=seconds,
            overhead=job.overhead,
            tasks=tuple(job.statuses(end)),
            latency=None if shown is None else shown.latency,
            build=None if shown is None else shown.build,
            known=job.known,
            targets=tuple(results),
            size_plan=next(iter(job.size_plans.values()), None),
        )


@dataclass(slots=True)
class Job:
    """One run of the tuner on one model: its parts, and the phases in order.

    `others` are targets beside the first, each with tasks of its own.
    """

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

    def register(self, model_name: str, graph: Graph) -> None:
        """Record the job and its workloads, and take over what earlier runs measured."""
        self.model_name = model_name
        self.store.add([TargetRecord(target.key, target.to_json()) for target in self.targets])
        self.store.add(
            WorkloadRecord(task.key.workload, task.kernel.name, task.kernel_json)
            for task in self.tasks
        )
        tasks = [JobTask(task.key, task.progress.occurrences) for task in self.tasks]
        settings = self.settings.to_json()
        settings["database"] = {"url": self.store.name}  # without a password
        model_hash = structural_hash(graph)
        self._say_what_is_lost(model_hash)
        self.id = self.store.start_job(model_name, model_hash, settings, tasks).id
        self.seen = queries.last_trial(self.store)
        for task in self.tasks:
            found = queries.best(self.store, task.key)
            settled = None if found is None else found[1]
            task.resume(queries.trials(self.store, task.key), settled)
            if found is not None and math.isfinite(task.confirmed_latency):
                task.settle(found[0])
        self.known = TrialCounts.of(self.statuses())
        known = self.known.trials
        calls = sum(task.progress.occurrences for task in self.tasks)
        text = f"{len(self.tasks)} distinct kernels in {calls} calls"
        self.progress.message(f"{text}, {known} trials known from earlier runs" if known else text)
        if self.store.upgrade_note:
            self.progress.message(self.store.upgrade_note)
        notes = [note for task in self.tasks[:1] for note in unusable(self.store, task.key)]
        for note in notes:
            self.progress.message(note)

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

    def prepare(self, graph: Graph) -> None:
        """Build the untuned model: it is compared with, and tells how long builds and runs take."""
        begin = time.monotonic()
        if graph.signature is not None:
            self.points = points_of(graph.signature)
        if len(self.points) > 1:
            self.time.keep_for_sizes(len(self.points) * len(self.tasks))
        for target in self.targets:
            untuned, _ = self._compile(graph, None, target)
            self.untuned[target.key] = untuned
            tasks = self.tasks_for(target)
            kernels = {task.key.workload: task.kernel for task in tasks}
            placements = model_placements(untuned, kernels)
            for task in tasks:
                task.placements = placements[task.key.workload]
        self.time.build_seconds = time.monotonic() - begin
        for target in filter(self.is_here, self.targets):
            model = Executable(self.untuned[target.key])
            inputs = aligned_inputs(model)
            model.run(inputs)
            begin = time.monotonic()
            model.run(inputs)
            self.time.run_seconds += time.monotonic() - begin

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
            session = self._session(runner)
            interrupt.tell(session.stop)
            interrupt.tell(finalists.stop)
            interrupt.tell(elsewhere.stop)
            interrupt.tell(self.patience.stop)
            self.progress.start()
            try:
                end = session.run()
                if not interrupt.asked:
                    timing = timing_options(self.settings)
                    self.progress.message("measuring the fastest of each kernel side by side")
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
            finally:
                self.progress.stop()
                self.measured = session.measured + finalists.measured
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
        self.time.keep_for_sizes(0)
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

    def confirm(
        self, graph: Graph, target: Target | None = None
    ) -> tuple[ModelLatency | None, BuildReport]:
        """Measure the whole model with the former and the new schedules, and keep the better set.

        That of one target, of the first if None. What the finalists settled is in the database only
        after this. A model for machines of another kind is not measured: what they settled stays.
        """
        target = self.target if target is None else target
        self.progress.message("building the tuned model")
        own = [settled for settled in self.settled if settled.task.key.target == target.key]
        bests = [settled.best for settled in own]
        untuned = self.untuned[target.key]  # prepare comes first
        new, report = self._compile(graph, self._choose(target, settled=bests), target)
        latency = None
        if self.is_here(target):
            choose = self._choose(target, only_confirmed=True)
            old, former = self._compile(graph, choose, target)
            self.progress.message("measuring it and the untuned one in turn")
            changes = new.objects != old.objects
            third = Executable(old) if changes and old.objects != untuned.objects else None
            options = replace(COMPARISON, max_seconds=self.time.comparison_seconds)
            latency = compare_models(
                Executable(untuned), Executable(new), third, options, self._agree(target)
            )
            if changes and latency.is_slower:
                self.progress.message(
                    "the new schedules make the model slower: the former ones stay"
                )
                bests = [settled.incumbent for settled in own if self._still_applies(settled)]
                report = former
        self.store.add(bests)
        if (plan := self.size_plans.get(target.key)) is not None:
            record_size_plan(self.store, plan, self.model_name, graph, self.settings, target)
        tasks = self.tasks_for(target)
        refresh(tasks, self.store)
        self.outcomes |= {task.key: self._outcome(task) for task in tasks}
        return latency, report

    def _outcome(self, task: TuningTask) -> Outcome:
        """What was claimed of a task and what is confirmed, as times over the default's.

        Where nobody met because there was no choice, both are what is applied as before.
        """
        found = queries.best(self.store, task.key)
        ratios = (1.0,) * 3 if found is None else (found[0].ratio, found[0].low, found[0].high)
        claim = self.claims.get(task.key)
        return Outcome(ratios[0] if claim is None else math.exp(claim.mean), *ratios)

    def _compile(
        self, graph: Graph, choose: ChooseSchedule | None, target: Target
    ) -> tuple[ExecutableSpec, BuildReport]:
        """The model's code and how it was built; the constants before packing are not kept."""
        built = compile_with(graph, choose, self.settings, target, numerics=self.numerics)
        return built.spec, build_report(built.spec.kernels, built.kernels)

    def _agree(self, target: Target) -> Agree:
        """How outputs of builds with other schedules are compared: models with narrow operands
        round inside."""
        operands = (buffer for task in self.tasks_for(target) for buffer in task.kernel.inputs)
        narrow = any(b.dtype.bytes < 4 and b.dtype is not DType.BOOL for b in operands)
        return outputs_near if narrow else outputs_agree

    def _still_applies(self, settled: Settled) -> bool:
        """Whether no other job has settled the task since the finalists met."""
        found = queries.best(self.store, settled.task.key)
        return found is None or found[0].schedule_hash == settled.incumbent.schedule_hash

    def _choose(
        self,
        target: Target,
        *,
        only_confirmed: bool = False,
        settled: Iterable[BestRecord] = (),
    ) -> ChooseSchedule:
        compile = self.settings.compile
        return choose_from(
            self.store,
            target,
            compile.threads,
            compile.numerics,
            only_confirmed=only_confirmed,
            settled=settled,
        )

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
            background=self.background,
            seen=self.seen,
            capacities=capacities_of(runner) if self.others else None,
        )

    def _end(self) -> End:
        progress = [task.progress for task in self.tasks]
        return self.budget.end(progress, time.monotonic() - self.started)
