"""Is the search's result as good as the best of thousands of schedules that were all measured?

    python -m tests.benchmarks.search drawn [--kernels 3] [--schedules 2000] [--trials 64]

For each of three kernels: distinct schedules of its full space, drawn as random search draws them,
are measured in pairs against the default schedule, and the best dozen once more at leisure. Then
a search of its own, in a database of its own, has its trials and its finalists. In the end what it
settled on, the best of all that were drawn and the default meet in fresh processes. An interrupted
run goes on where it was. Run nothing beside it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.benchmarks.paired import compare_paired
from tests.benchmarks.recording import Case, conv_model
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import SearchSettings, Settings
from tunefarm.db import queries
from tunefarm.db.records import TargetRecord, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import Comparison, pair_of
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.tuner.building.lowered import compile_with
from tunefarm.tuner.confirm.placement import model_placements
from tunefarm.tuner.job import Job
from tunefarm.tuner.job_models import JobModels
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.model.packed_space import PackedSpace
from tunefarm.tuner.records.trials import record_to_apply, task_key, trial_record
from tunefarm.tuner.reports.progress import make_progress
from tunefarm.tuner.reports.report import format_ratio
from tunefarm.tuner.search.make_tasks import TaskSource, distinct_kernels, make_tasks
from tunefarm.tuner.search.measuring import runner_of, timing_options
from tunefarm.tuner.search.tasks import Planned, plan
from tunefarm.tuner.search.time_plan import TimePlan

AGAIN = 12  # of the fastest, measured once more
MEETING = 3  # of those, who meet what the search found
PROCESSES = 8  # fresh ones, in which they meet
WITHIN = 1.03  # of the best of all that were drawn
LEISURE = 2.0  # seconds for all slices of a request that may take its time
MOST_DRAWS = 50  # times the schedules wanted: a small space has no more

Schedule = list[Any]


def drawn_cases() -> list[Case]:
    """Kernels in whose spaces there is something to be won over the default."""
    return [
        Case("conv3x3 512x7", conv_model(512, 512, 7), "conv"),
        Case("conv1x1 512-128x28", conv_model(512, 128, 28, window=1), "conv"),
        Case("plain depthwise 144x56", conv_model(144, 144, 56, group=144), "conv"),
    ]


class Drawing:
    """Schedules of one kernel, drawn at random, all measured against its default schedule."""

    def __init__(self, case: Case, store: Store, settings: Settings, count: int) -> None:
        self.case, self.store, self.settings = case, store, settings
        self.graph: Graph = import_model_proto(case.model)
        self.target = host_target()
        found = {
            key: kernel
            for key, (kernel, _) in distinct_kernels(kernels_of(self.graph, self.target)).items()
            if case.kernel in kernel.name
        }
        ((workload, self.kernel),) = found.items()
        threads, numerics = settings.compile.threads, settings.compile.numerics
        self.key = task_key(workload, self.target, threads, numerics)
        self.space = schedule_space(self.kernel, self.target, threads, numerics)
        self.default = plan(self.space, self.space.default())
        self.planned = self._drawn(count)
        self.kernel_json = kernel_to_json(self.kernel)
        model = compile_with(self.graph, None, settings, self.target).spec
        places = model_placements(model, {workload: self.kernel})[workload]
        self.placements = tuple(place.to_json() for place in places[:1])

    def _drawn(self, count: int) -> dict[str, Planned]:
        """So many distinct schedules besides the default one, by hash, or all that there are."""
        packed, rng = PackedSpace(self.space), np.random.default_rng(0)
        drawn: dict[str, Planned] = {}
        for _ in range(MOST_DRAWS):
            for number in packed.numbers(packed.sample(count, rng)).tolist():
                planned = plan(self.space, self.space.candidate(number))
                if len(drawn) < count and planned.hash != self.default.hash:
                    drawn.setdefault(planned.hash, planned)
            if len(drawn) >= count:
                break
        return drawn

    def measure(self, runner: Runner) -> None:
        """Measure what is not in the database yet."""
        self.store.add([TargetRecord(self.target.key, self.target.to_json())])
        self.store.add([WorkloadRecord(self.key.workload, self.kernel.name, self.kernel_json)])
        self._run(runner, "default", [self.default], {})
        self._run(runner, "drawn", self.planned.values(), {"give_up": 1})
        best = [self.planned[record.schedule_hash] for record in self._ranked("drawn")[:AGAIN]]
        self._run(runner, "again", best, self.leisure)

    @property
    def leisure(self) -> dict[str, float | int]:
        """Options with which each of a few schedules is timed twice as long."""
        return {"samples": 2 * self.settings.measure.samples, "max_seconds": LEISURE}

    @property
    def best(self) -> list[Planned]:
        """The best of all that were drawn, or the default one if nothing is faster."""
        fastest = self._ranked("again")[:MEETING]
        return [self.planned[record.schedule_hash] for record in fastest] or [self.default]

    def summary(self) -> str:
        """How many schedules were measured, and what the best of them came to."""
        records, again = self._records("drawn"), self._ranked("again")
        lost = sum(record.status == Status.SCATTERED for record in records.values())
        failed = sum(not record.is_ok for record in records.values()) - lost
        text = f"{len(records)} drawn ({failed} failed, {lost} scattered)"
        if not again:
            return text
        claimed = _ratio(self._ranked("drawn")[0])
        measured = _ratio(again[0])
        return (
            f"{text}, the best {format_ratio(1 / claimed)} as fast as the default "
            f"and measured again {format_ratio(1 / measured)}"
        )

    def _records(self, name: str) -> dict[str, TrialRecord]:
        """The records of a pass, by schedule."""
        records = queries.trials(self.store, self.key)
        return {r.schedule_hash: r for r in records if r.request_id.startswith(name)}

    def _ranked(self, name: str) -> list[TrialRecord]:
        """The right ones of a pass, the fastest first."""
        good = [r for r in self._records(name).values() if r.is_ok and r.ratio is not None]
        return sorted(good, key=_ratio)

    def _run(
        self,
        runner: Runner,
        name: str,
        wanted: Iterable[Planned],
        options: Mapping[str, float | int],
    ) -> None:
        done = self._records(name)
        todo = iter([planned for planned in wanted if planned.hash not in done])
        default = self._records("default").get(self.default.hash)
        waiting: dict[str, Planned] = {}
        started, count = time.monotonic(), 0
        while True:
            while len(waiting) < runner.capacity and (planned := next(todo, None)):
                request = self.request(
                    f"{name}-{planned.hash}",
                    [planned] if default is None else [planned, self.default],
                    options,
                )
                waiting[request.request_id] = planned
                runner.submit(request)
            if not waiting:
                return
            results = runner.results(1.0)
            self.store.add(
                self._record(waiting.pop(result.request_id), result, default) for result in results
            )
            count += len(results)
            if results and count % 100 < len(results):
                pace = count / (time.monotonic() - started)
                _notify(f"{self.case.name}: {name} {count} ({pace:.1f}/s)")

    def request(
        self, request_id: str, planned: Sequence[Planned], options: Mapping[str, float | int]
    ) -> MeasureRequest:
        """The first of the schedules against the others."""
        return MeasureRequest(
            request_id,
            self.kernel_json,
            self.key.workload,
            planned[0].schedule,
            self.key.threads,
            {**timing_options(self.settings), **options},
            rivals=tuple(other.schedule for other in planned[1:]),
            seed=int(planned[0].hash[:8], 16),
            placements=self.placements,
        )

    def _record(
        self, planned: Planned, result: MeasureResult, default: TrialRecord | None
    ) -> TrialRecord:
        """The record of a result; against the default's one, if that is known already."""
        pair = pair_of(result)
        record = trial_record(
            self.key,
            result,
            sketch=planned.candidate.sketch,
            choices=self.space.choices(planned.candidate),
            schedule=planned.schedule,
            job="",
            reference=None if default is None else default.schedule_hash,
            latency=None if default is None or not pair else pair.ratio * median(default.samples),
        )
        return replace(record, job=None)


def _notify(text: str) -> None:
    print(text, file=sys.stderr)


def _ratio(record: TrialRecord) -> float:
    assert record.ratio is not None
    return record.ratio


def searched(drawing: Drawing, settings: Settings, path: Path) -> Planned:
    """What a job settles on that tunes the kernel alone, with a database of its own."""
    with Store.open(path) as store:
        model = BoostedTrees(settings.search.seed, settings.search.cost_model)
        kernels: dict[str, tuple[FusedKernel, int]] = {
            drawing.key.workload: (drawing.kernel, 1),
        }
        tasks = make_tasks([TaskSource(drawing.target, kernels)], settings, model)
        progress = make_progress()
        models = JobModels(
            name=drawing.case.name,
            graph=drawing.graph,
            settings=settings,
            targets=(drawing.target,),
            store=store,
            built_from=(structural_hash(drawing.graph), settings),
            time=TimePlan(settings.search.minutes, time.monotonic()),
            notify=progress.message,
        )
        job = Job(models, lambda: (tasks, []), model, progress, runner_of)
        store.patience = job.patience
        job.register()
        job.prepare()
        end = job.search()
        store.add(settled.best for settled in job.settled)
        store.finish_job(job.id, "finished", {})
        applied = record_to_apply(store, drawing.key)
        trials = tasks[0].progress.trials
    _notify(f"{drawing.case.name}: searched, {trials} trials known: {end}")
    if applied is None:
        return drawing.default
    record = applied[0]
    candidate = drawing.space.find(record.sketch, record.choices)
    assert candidate is not None, record.choices
    return Planned(candidate, record.schedule, record.schedule_hash)


def meet(drawing: Drawing, runner: Runner, planned: Sequence[Planned]) -> list[list[float]]:
    """Samples of each schedule, taken side by side in fresh processes."""
    options = {**drawing.leisure, "fresh_process": 1}
    samples: list[list[float]] = [[] for _ in planned]
    for number in range(PROCESSES):
        request = drawing.request(f"meeting-{number}", planned, options)
        runner.submit(replace(request, seed=number))
        results: list[MeasureResult] = []
        while not results:
            results = list(runner.results(1.0))
        if results[0].status is not Status.OK:
            _notify(f"{drawing.case.name}: {results[0].status}")
            continue
        for kept, taken in zip(samples, (results[0].samples, *results[0].rivals), strict=True):
            kept += taken
    return samples


def compare(drawing: Drawing, runner: Runner, found: Planned) -> Comparison:
    """The search's result against the fastest of the best that were drawn, itself maybe."""
    everyone = list({p.hash: p for p in [found, drawing.default, *drawing.best]}.values())
    samples = meet(drawing, runner, everyone)
    against = {
        planned.hash: compare_paired(samples[0], taken)
        for planned, taken in zip(everyone, samples, strict=True)
    }
    default = against[drawing.default.hash]
    print(
        f"{drawing.case.name}: {drawing.summary()}; what the search settled on "
        f"{format_ratio(1 / default.ratio)} ({format_ratio(1 / default.high)} to "
        f"{format_ratio(1 / default.low)})"
    )
    return max((against[planned.hash] for planned in drawing.best), key=lambda c: c.ratio)


def drawn(kernels: int, schedules: int, trials: int, database: Path) -> bool:
    """Print for each kernel how the search's result compares; whether all are within 3 %."""
    settings = Settings()
    search = Settings(search=SearchSettings(total_trials=trials))
    good = True
    with Store.open(database) as store:
        for case in drawn_cases()[:kernels]:
            drawing = Drawing(case, store, settings, schedules)
            _notify(f"{case.name}: {drawing.space.size} candidates")
            with runner_of(settings, drawing.target, _notify) as runner:
                drawing.measure(runner)
            found = searched(drawing, search, database.with_suffix(".search.db"))
            with runner_of(settings, drawing.target, _notify) as runner:
                compared = compare(drawing, runner, found)
            verdict = "within" if compared.ratio <= WITHIN else "NOT within"
            good = good and compared.ratio <= WITHIN
            print(
                f"{case.name}: time over the best of all {compared.ratio:.3f} "
                f"({compared.low:.3f} to {compared.high:.3f}): {verdict} 3 %",
                flush=True,
            )
    return good
