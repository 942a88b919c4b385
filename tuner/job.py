"""The whole job: model -> kernels -> search -> finalists -> both models measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from compiler.frontend.import_onnx import import_onnx
from compiler.graph.ir import Graph
from compiler.graph.serialize import structural_hash
from compiler.pipeline import kernels_of
from compiler.runtime.executable import Executable
from compiler.target import Target
from configs.settings import Settings
from db import queries
from db.records import JobState, JobTask, TargetRecord, WorkloadRecord
from db.store import Store
from measure.make_runner import create_runner
from measure.runner import Runner
from measure.slots import SlotPlan, available_cores, plan_slots
from tuner.budget import Budget, End, Limits
from tuner.build_model import BuildReport, compile_from, target_of
from tuner.cost_model import BoostedTrees
from tuner.finalists import Finalists, refresh
from tuner.interrupt import interruptible
from tuner.latency import ModelLatency, compare_models
from tuner.make_tasks import distinct_kernels, make_tasks
from tuner.progress import NoProgress, Progress
from tuner.report import TaskStatus, format_duration, task_to_json
from tuner.session import SessionOptions, TuningSession, job_progress
from tuner.tasks import TuningTask

SEARCH_SHARE = 0.85  # of the minutes; the rest is for the finalists and the whole model
MakeRunner: TypeAlias = Callable[[Settings, Target], Runner]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a job did. `latency` and `build` are None when it was interrupted."""

    model: str
    database: str
    job: str
    end: End
    measured: int  # results of this run
    seconds: float
    tasks: tuple[TaskStatus, ...]
    latency: ModelLatency | None
    build: BuildReport | None

    @property
    def interrupted(self) -> bool:
        return self.end is End.INTERRUPTED

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "model": self.model,
            "database": self.database,
            "job": self.job,
            "end": self.end.value,
            "measured": self.measured,
            "seconds": self.seconds,
            "tasks": [task_to_json(task) for task in self.tasks],
            "latency": None if self.latency is None else asdict(self.latency),
            "build": None if self.build is None else self.build.to_json(),
        }


def tune_model(
    model: str | os.PathLike[str],
    settings: Settings,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress | None = None,
    make_runner: MakeRunner | None = None,
) -> TuneResult:
    """Tune a model's kernels into the settings' database; go on where an earlier run ended.

    Raises TunefarmError for a model that cannot be compiled, a database that cannot be used and a
    machine on which nothing can be measured. Ctrl-C ends it early with all results kept.
    """
    started = time.monotonic()
    target = target_of(settings)
    if settings.measure.address is None:
        slots_of(settings)  # too few cores for the threads: said before the work begins
    graph = import_onnx(Path(model), shapes)
    kernels = distinct_kernels(kernels_of(graph, target))
    with Store.open(settings.database.url) as store:
        cost_model = make_cost_model(settings)
        job = Job(
            settings=settings,
            target=target,
            store=store,
            cost_model=cost_model,
            tasks=make_tasks(kernels, target, settings, cost_model),
            progress=NoProgress() if progress is None else progress,
            make_runner=runner_of if make_runner is None else make_runner,
            started=started,
        )
        job.register(Path(model).name, graph)
        state: JobState = "failed"
        latency: ModelLatency | None = None
        report: BuildReport | None = None
        try:
            end = job.search()
            if end is not End.INTERRUPTED:
                latency, report = job.measure_model(graph)
            state = "interrupted" if end is End.INTERRUPTED else "finished"
        except KeyboardInterrupt:
            end, state = End.INTERRUPTED, "interrupted"
        finally:
            store.finish_job(job.id, state, job_progress(job.statuses()))
        return TuneResult(
            model=os.fspath(model),
            database=store.name,
            job=job.id,
            end=end,
            measured=job.measured,
            seconds=time.monotonic() - started,
            tasks=tuple(job.statuses()),
            latency=latency,
            build=report,
        )


@dataclass(slots=True)
class Job:
    """One run of the tuner on one model: its parts, and the phases in order."""

    settings: Settings
    target: Target
    store: Store
    cost_model: BoostedTrees
    tasks: list[TuningTask]
    progress: Progress
    make_runner: MakeRunner
    started: float
    id: str = ""
    measured: int = 0
    budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        search = self.settings.search
        self.budget = Budget(
            Limits(
                trials=search.total_trials,
                trials_per_task=search.trials_per_task,
                minutes=None if search.minutes is None else SEARCH_SHARE * search.minutes,
                patience=search.patience,
            )
        )

    def register(self, model_name: str, graph: Graph) -> None:
        """Record the job and its workloads, and take over what earlier runs measured."""
        self.store.add_targets([TargetRecord(self.target.key, self.target.to_json())])
        self.store.add_workloads(
            WorkloadRecord(task.key.workload, task.kernel.name, task.kernel_json)
            for task in self.tasks
        )
        tasks = [JobTask(task.key, task.progress.occurrences) for task in self.tasks]
        settings = self.settings.to_json()
        self.id = self.store.start_job(model_name, structural_hash(graph), settings, tasks).id
        for task in self.tasks:
            task.resume(queries.trials(self.store, task.key))
        known = sum(task.progress.trials for task in self.tasks)
        calls = sum(task.progress.occurrences for task in self.tasks)
        text = f"{len(self.tasks)} distinct kernels in {calls} calls"
        self.progress.message(f"{text}, {known} trials known from earlier runs" if known else text)

    def statuses(self) -> list[TaskStatus]:
        """Where every task stands."""
        return [task.status(self.budget) for task in self.tasks]

    def search(self) -> End:
        """Search, then confirm the best; returns why it ended. No runner is started for nothing."""
        finalists = Finalists(self.store, job=self.id, seed=self.settings.search.seed)
        progress = [task.progress for task in self.tasks]
        if self.budget.next_task(progress, 0.0) is None and not finalists.wanted(self.tasks):
            return self._end()
        with (
            interruptible() as interrupt,
            self.make_runner(self.settings, self.target) as runner,
            off_the_slots(self.settings),
        ):
            session = self._session(runner)
            interrupt.tell(session.stop)
            interrupt.tell(finalists.stop)
            self.progress.start()
            try:
                end = session.run()
                if not interrupt.asked:
                    timing = timing_options(self.settings)
                    self.progress.message("measuring the fastest of each kernel side by side")
                    finalists.run(self.tasks, runner, timing, self._out_of_time, session.show)
            finally:
                self.progress.stop()
                self.measured = session.measured + finalists.measured
            if interrupt.asked:
                return End.INTERRUPTED
        refresh(self.tasks, self.store)
        return end

    def measure_model(self, graph: Graph) -> tuple[ModelLatency, BuildReport]:
        """Build the model without and with records and measure both."""
        self.progress.message("building the untuned and the tuned model")
        untuned, _ = compile_from(graph, None, self.settings)
        tuned, report = compile_from(graph, self.store, self.settings)
        self.progress.message("measuring both")
        return compare_models(Executable(untuned), Executable(tuned)), report

    def _session(self, runner: Runner) -> TuningSession:
        return TuningSession(
            self.tasks,
            runner,
            self.store,
            self.cost_model,
            self.budget,
            SessionOptions(self.settings.search.batch_size, timing_options(self.settings)),
            job=self.id,
            progress=self.progress,
        )

    def _end(self) -> End:
        progress = [task.progress for task in self.tasks]
        return self.budget.end(progress, time.monotonic() - self.started)

    def _out_of_time(self) -> bool:
        minutes = self.settings.search.minutes
        return minutes is not None and time.monotonic() - self.started >= 60.0 * minutes


def make_cost_model(settings: Settings) -> BoostedTrees:
    """The cost model that the settings describe."""
    trees = settings.search.cost_model
    return BoostedTrees(
        settings.search.seed,
        rounds=trees.rounds,
        max_depth=trees.max_depth,
        learning_rate=trees.learning_rate,
        min_samples=trees.min_records,
    )


def runner_of(settings: Settings, target: Target) -> Runner:
    """The runner that the settings name."""
    measure = settings.measure
    return create_runner(
        measure.runner,
        threads=settings.compile.threads,
        target=target,
        slots=measure.slots,
        builders=measure.builders,
        address=measure.address or "local",
    )


def timing_options(settings: Settings) -> dict[str, float | int]:
    """The options of a request, from the settings."""
    measure = settings.measure
    return {
        "samples": measure.samples,
        "min_samples": min(2, measure.samples),
        "min_sample_seconds": measure.min_sample_seconds,
        "build_timeout": measure.build_timeout,
        "run_timeout": measure.run_timeout,
    }


def slots_of(settings: Settings) -> SlotPlan:
    """Which of this machine's cores time candidates; MeasureError if there are too few."""
    return plan_slots(available_cores(), settings.compile.threads, slots=settings.measure.slots)


@contextmanager
def off_the_slots(settings: Settings) -> Iterator[None]:
    """Keep this thread, which proposes and trains, off the cores that time candidates."""
    if settings.measure.address is not None or slots_of(settings).alternates:
        yield
        return
    cores = available_cores()
    os.sched_setaffinity(0, slots_of(settings).build_cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def summary_lines(result: TuneResult, command: str) -> list[str]:
    """What a job did and what to do next, for people."""
    count = "1 measurement" if result.measured == 1 else f"{result.measured} measurements"
    lines = [f"{count} in {format_duration(result.seconds)}: {result.end}"]
    latency = result.latency
    if latency is not None:
        lines.append(
            f"whole model: {1e3 * latency.untuned:.3f} ms untuned, {1e3 * latency.tuned:.3f} ms "
            f"tuned: {1 / latency.ratio:.2f}x as fast "
            f"(95 % sure: {1 / latency.high:.2f}x to {1 / latency.low:.2f}x)"
        )
    lines.append(f"next: {command}")
    return lines
