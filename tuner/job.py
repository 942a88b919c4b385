"""A job, from a model to schedules that are worth keeping. Its phases, as `tune_model` has them:

import_model      ONNX file -> graph -> distinct kernels        (measure.sandbox, compiler)
read_history      what the database knows of other kernels      (tuner.model)
make_tasks        a kernel -> its space, its strategy           (tuner.search)
Job.register      the job's record; what earlier runs measured
Job.prepare       the untuned model, built and run once         (tuner.job_models)
Job.search        proposals -> measurements -> finalists        (tuner.search, tuner.confirm)
Job.confirm       the whole model with the former and the new schedules, at several sizes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.schedule.space import ChoiceValue
from tunefarm.compiler.target import Target
from tunefarm.configs.settings import Settings
from tunefarm.db import queries
from tunefarm.db.records import JobTask, TargetRecord, TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.db.work import close_lost_jobs
from tunefarm.measure.compare import LogRatio
from tunefarm.measure.farm.runner import CallsNodes, Runner
from tunefarm.tuner.building.model_file import ModelStamp, newest_job
from tunefarm.tuner.building.report import BuildReport
from tunefarm.tuner.confirm.finalists import Finalists, Settled, contested, refresh
from tunefarm.tuner.confirm.kernel_choices import defaults_for_claims
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.confirm.placement import PlacementCheck
from tunefarm.tuner.confirm.size_race import SizeRace, applied_schedules
from tunefarm.tuner.confirm.whole_model import Exchanged
from tunefarm.tuner.interrupt import Interrupt, interruptible
from tunefarm.tuner.job_models import JobModels
from tunefarm.tuner.job_request import MakeRunner
from tunefarm.tuner.model.cost_model import BoostedTrees, TrainingData
from tunefarm.tuner.records.job_command import JobCommand
from tunefarm.tuner.records.size_ranges import SizePlan
from tunefarm.tuner.records.unapplied import VERSION, Wanted, damaged, unapplied
from tunefarm.tuner.reports.gains import ModelGain
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.reports.report import TaskStatus, format_ratio, format_time
from tunefarm.tuner.result import Outcome, TrialCounts, kernel_sums
from tunefarm.tuner.search import monitor as phases
from tunefarm.tuner.search.budget import Budget, End, Limits, expected_gain
from tunefarm.tuner.search.job_coordination import RetryPolicy
from tunefarm.tuner.search.measuring import off_the_slots, timing_options
from tunefarm.tuner.search.monitor import Monitor
from tunefarm.tuner.search.pairwise_estimates import Estimate
from tunefarm.tuner.search.session import Overhead, SessionOptions, TuningSession
from tunefarm.tuner.search.tasks import TuningTask, tasks_for
from tunefarm.tuner.search.time_plan import TimePlan

# Reasons: which choices of a kernel's schedule are others than the default one's.

_NAMED = 3  # choices, those that matter most
_MATTERS = 0.005  # log of time: smaller differences of single trials say nothing


def reason(task: TuningTask, applied: TrialRecord) -> str:
    """Why a task's schedule is faster than its default one, in words: the choices that differ.

        tile 7x2 instead of 14x2 (6 % slower without), unroll 4 instead of 8

    A choice of which the search has measured what its default value costs, all else being the same,
    comes first, the one that costs most before the others. "" for the default schedule, and for one
    that is no point of the space any more.
    """
    default = task.default.candidate
    if applied.schedule_hash == task.default.hash:
        return ""
    if applied.sketch != default.sketch:
        return f"{applied.sketch} instead of {default.sketch}"
    found = task.space.find(applied.sketch, applied.choices)
    if found is None:
        return ""
    before, now = task.space.choices(default), task.space.choices(found)
    costs = {name: _cost(task, applied, name) for name in now if now[name] != before[name]}
    names = sorted(costs, key=lambda name: -costs[name])
    texts = [
        f"{name} {_text(now[name])} instead of {_text(before[name])}{_without(costs[name])}"
        for name in names[:_NAMED]
    ]
    left = len(names) - len(texts)
    return ", ".join([*texts, f"{left} more"] if left else texts)


def _cost(task: TuningTask, applied: TrialRecord, name: str) -> float:
    """log of the time with one choice as the default schedule has it, over that of what is applied;
    0 where that was not measured."""
    value = task.space.choices(task.default.candidate)[name]
    other = task.space.find(applied.sketch, {**applied.choices, name: value})
    if other is None:
        return 0.0
    own = task.known.get(applied.schedule_hash, math.inf)
    seconds = task.known.get(task.plan(other).hash, math.inf)
    return math.log(seconds / own) if 0.0 < own < math.inf and 0.0 < seconds < math.inf else 0.0


def _without(cost: float) -> str:
    return f" ({100.0 * math.expm1(cost):.0f} % slower without)" if cost > _MATTERS else ""


def _text(value: ChoiceValue) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


MORE_GAIN = 1.01
"""Times as much as before is expected of the kernels, before the whole model is measured again."""
MakeTasks: TypeAlias = Callable[[], tuple[list[TuningTask], list[TrainingData]]]
"""Makes a job's tasks, and what is known of other kernels."""


@dataclass(slots=True)
class Job:
    """One run of the tuner on one model: its tasks, its budget and its search, phase by phase.

    `make_tasks` is called when the job begins, and again when its search goes on.
    """

    models: JobModels
    make_tasks: MakeTasks
    cost_model: BoostedTrees
    progress: Progress
    make_runner: MakeRunner
    monitor: Monitor = field(default_factory=Monitor)
    tasks: list[TuningTask] = field(init=False)
    background: list[TrainingData] = field(init=False)
    id: str = ""
    measured: int = 0
    requests: int = 0  # of the search so far
    races: int = 0  # requests of finalists so far
    seen: int = 0  # the last trial that the tasks know of
    settled: list[Settled] = field(default_factory=list)
    claims: dict[TaskKey, Estimate] = field(default_factory=dict)
    outcomes: dict[TaskKey, Outcome] = field(default_factory=dict)
    placements: dict[TaskKey, LogRatio] = field(default_factory=dict)
    exchanged: dict[str, Exchanged] = field(default_factory=dict)  # by the target's key
    known: TrialCounts = field(default_factory=TrialCounts)  # before this job
    budget: Budget = field(init=False)
    patience: RetryPolicy = field(init=False)
    overhead: Overhead = field(default_factory=Overhead)

    def __post_init__(self) -> None:
        self.tasks, self.background = self.make_tasks()
        self.patience = RetryPolicy(self.progress)
        search = self.settings.search
        self.budget = Budget(
            Limits(
                trials=search.total_trials,
                trials_per_task=search.trials_per_task,
                patience=search.patience,
                min_gain=search.min_gain,
                nothing_to_win=search.nothing_to_win,
                gain=search.target_gain,
            )
        )

    @property
    def settings(self) -> Settings:
        """Those of the whole job."""
        return self.models.settings

    @property
    def store(self) -> Store:
        """The database of the job's records."""
        return self.models.store

    @property
    def time(self) -> TimePlan:
        """The deadlines of the job's phases."""
        return self.models.time

    @property
    def targets(self) -> tuple[Target, ...]:
        """What the model is tuned for; each target has tasks of its own."""
        return self.models.targets

    @property
    def size_plan(self) -> SizePlan | None:
        """Which schedules serve which sizes, of a model with a range of them."""
        return next(iter(self.models.size_plans.values()), None)

    def register(self, command: JobCommand | None = None, stamp: ModelStamp | None = None) -> None:
        """Record the job, with the command that began it and the `stamp` of its model's file, and
        its workloads, and take over what earlier runs measured."""
        self.store.add([TargetRecord(target.key, target.to_json()) for target in self.targets])
        tasks = self._recorded_tasks()
        settings = self.settings.to_json()
        settings["database"] = {"url": self.store.name}  # without a password
        settings["machines"] = {target.key: target.machine.digest for target in self.targets}
        if command is not None:
            settings = command.kept_in(settings)
        if stamp is not None:
            settings = stamp.kept_in(settings)
            self._say_what_changed(stamp)
        model_hash = structural_hash(self.models.graph)
        self._say_what_is_lost(model_hash)
        self.id = self.store.start_job(self.models.name, model_hash, settings, tasks).id
        self.monitor.begin(self.store, self.id)
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
        for left in damaged(self.store, ()):
            self.progress.message(str(left))
        untuned = {task.key.workload: task.name for task in self.tasks}
        for task in self.tasks[:1]:
            wanted = Wanted(task.key, self.targets[0], task.key.numerics, untuned=untuned)
            for note in unapplied(self.store, wanted):
                if VERSION in note.differs:
                    self.progress.message(str(note))

    def _recorded_tasks(self) -> list[JobTask]:
        """The tasks as the job's record has them; their workloads are recorded."""
        self.store.add(
            WorkloadRecord(task.key.workload, task.name, task.kernel_json) for task in self.tasks
        )
        return [JobTask(task.key, task.progress.occurrences) for task in self.tasks]

    def _resume(self) -> None:
        """Take over what was measured of the tasks by earlier jobs, and by this one."""
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

    def _say_what_is_lost(self, model_hash: str) -> None:
        """Close the jobs whose processes are gone; say so of those that tuned this model."""
        for lost in close_lost_jobs(self.store):
            if lost.model_hash == model_hash:
                where = f" ({lost.where} is no more)" if lost.where else ""
                self.progress.message(
                    f"a former job, started {format_time(lost.started)} UTC, was lost{where}: "
                    "this one goes on from what it recorded"
                )

    def _say_what_changed(self, stamp: ModelStamp) -> None:
        """Say so if the file is not what the job before this one has read."""
        found = newest_job(self.store, stamp.path)
        if found is not None and (difference := found[1].difference()):
            self.progress.message(
                f"{stamp.path} is not the file that job {found[0].id[:8]} read ({difference}): "
                "this job goes on from what was recorded of kernels that both have"
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
            found.append(self.outcomes.get(task.key, Outcome()).applied_to(status))
        return found

    def prepare(self) -> None:
        """Build and run the untuned models, which tell how long both takes."""
        self._enter(phases.PREPARING)
        self.models.prepare(self.tasks)

    def search(self) -> End:
        """Search, then confirm the best; returns why it ended. No runner is started for nothing."""
        finalists = Finalists(
            self.store, job=self.id, seed=self.settings.search.seed, number=self.races
        )
        elsewhere = PlacementCheck(self.store, job=self.id, seed=self.settings.search.seed)
        progress = [task.progress for task in self.tasks]
        if self.budget.next_task(progress, 0.0) is None and not finalists.wanted(self.tasks):
            return self._end()
        with interruptible() as interrupt, ExitStack() as stack:
            with interrupt.at_once():
                runner = stack.enter_context(
                    self.make_runner(self.settings, self.targets[0], self.progress.message)
                )
            stack.enter_context(off_the_slots(self.settings))
            session = self._session(runner)
            interrupt.add_listener(session.stop)
            interrupt.add_listener(finalists.stop)
            interrupt.add_listener(elsewhere.stop)
            interrupt.add_listener(self.patience.stop)
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
                if not interrupt.asked and isinstance(runner, CallsNodes):
                    self._confirm_elsewhere(finalists.settled, runner)
            finally:
                self.progress.stop()
                self.measured += session.measured + finalists.measured
                self.overhead = self.overhead.plus(session.overhead)
                self.requests, self.races = session.number, finalists.number
                self.settled, self.claims = finalists.settled, finalists.claims
                self.placements = elsewhere.ratios
            return End.INTERRUPTED if interrupt.asked else end

    def reaches(self, gains: Sequence[ModelGain]) -> bool:
        """Whether the target gain was confirmed, of each target's model that was measured."""
        wanted = self.settings.search.target_gain
        known = [gain for gain in gains if gain.is_known]
        return wanted is not None and bool(known) and all(gain.reaches(wanted) for gain in known)

    def goes_on(self, gains: Sequence[ModelGain]) -> bool:
        """Whether to search for more, after a search that ended since its target gain was expected
        and models that confirm no more than `gains`; the tasks are made anew then.

        As much more is to be expected as the models have confirmed less, and something at least.
        """
        target = self.settings.search.target_gain
        if target is None or not self.time.has_time_for_search(len(self.tasks)):
            return False
        expected = expected_gain([task.progress for task in self.tasks])
        confirmed = min((1.0 / gain.ratio for gain in gains if gain.is_known), default=1.0)
        wanted = expected * max(MORE_GAIN, target / confirmed)
        self.budget = Budget(replace(self.budget.limits, gain=wanted))
        self.progress.message(
            f"the whole model is {format_ratio(confirmed)} as fast so far, {target:g}x is the "
            "target: the search goes on"
        )
        self.tasks, self.background = self.make_tasks()
        self._resume()
        self.models.place(self.tasks)
        return True

    def _race_at_sizes(
        self, settled: Sequence[Settled], runner: Runner, interrupt: Interrupt
    ) -> None:
        """Find which schedules serve which sizes, of a model that has a range of them."""
        points = self.models.points
        if len(points) < 2:
            return
        self.progress.message(f"measuring the fastest at {len(points)} sizes")
        self._enter(phases.SIZES)
        self.time.begin_sizes()
        for target in self.targets:
            race = SizeRace(points, job=self.id, seed=self.settings.search.seed)
            interrupt.add_listener(race.stop)
            tasks = tasks_for(self.tasks, target)
            race.run(
                tasks,
                applied_schedules(self.store, tasks, settled),
                runner,
                timing_options(self.settings),
                self.time.finalists_are_late,
            )
            if (plan := race.plan()) is not None:
                self.models.size_plans[target.key] = plan

    def _confirm_elsewhere(self, settled: Sequence[Settled], runner: CallsNodes) -> None:
        for target in self.targets:
            if not self.models.is_here(target):
                self.models.confirm_elsewhere(target, self.tasks, settled, runner, job=self.id)

    def confirm(self, target: Target) -> tuple[ModelLatency | None, BuildReport]:
        """Measure the whole model with the former and the new schedules, and keep the better set.

        What the finalists settled is in the database only after this.
        """
        self.progress.message("building the tuned model")
        self._enter(phases.CONFIRMING)
        found = self.models.confirm(target, self.tasks, self.settled, job=self.id)
        self.exchanged[target.key] = found.exchanged
        tasks = tasks_for(self.tasks, target)
        refresh(tasks, self.store)
        self.outcomes |= {task.key: self._outcome(task) for task in tasks}
        description = zip(self.tasks, self.statuses(), strict=True)
        sums = kernel_sums(status for task, status in description if task.key.target == target.key)
        self.models.keep_latency(target, found, sums, job=self.id)
        return found.latency, found.report

    def _outcome(self, task: TuningTask) -> Outcome:
        """What was claimed of a task and what is confirmed, as times over the default's.

        Where nobody met because there was no choice, both are what is applied as before. Where the
        finalists have not met, and the model is faster with what the search claims, nothing is
        confirmed of the kernel.
        """
        found = queries.best(self.store, task.key)
        if found is None and defaults_for_claims(self.store, [task], (), self.id):
            return Outcome()
        ratios = (1.0,) * 3 if found is None else (found[0].ratio, found[0].low, found[0].high)
        claim = self.claims.get(task.key)
        why = "" if found is None else reason(task, found[1])
        return Outcome(ratios[0] if claim is None else math.exp(claim.mean), *ratios, why)

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
            number=self.requests,
            spare=lambda: self.time.spare_seconds(contested(self.store, self.tasks)),
        )

    def _end(self) -> End:
        progress = [task.progress for task in self.tasks]
        return self.budget.end(progress, self.time.elapsed)
