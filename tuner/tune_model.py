"""One job of one model: imported, tuned phase by phase (`tunefarm.tuner.job`), and what came of
it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.errors import LeaseTakenError
from tunefarm.configs.settings import Settings
from tunefarm.db import queries
from tunefarm.db.records import JobState
from tunefarm.db.store import Store
from tunefarm.measure.core_locks import patient_until
from tunefarm.measure.farm.make_runner import check_runner
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.lowered import LoweredModel
from tunefarm.tuner.building.model_file import Future, ModelStamp
from tunefarm.tuner.building.size_values import programs_of
from tunefarm.tuner.calibration.options import CHOSEN
from tunefarm.tuner.confirm.whole_model import Exchanged
from tunefarm.tuner.from_settings import limits_of, numerics_of, target_of, targets_of
from tunefarm.tuner.interrupt import interrupt_thread
from tunefarm.tuner.job import Job
from tunefarm.tuner.job_models import JobModels
from tunefarm.tuner.job_request import JobRequest
from tunefarm.tuner.model.cost_model import BoostedTrees, TrainingData
from tunefarm.tuner.model.pretrained import load_pretrained
from tunefarm.tuner.result import TargetResult, TuneResult, model_gain
from tunefarm.tuner.search.budget import End
from tunefarm.tuner.search.job_coordination import heartbeat
from tunefarm.tuner.search.make_tasks import (
    distinct_kernels,
    known_of_others,
    make_tasks,
    task_source,
)
from tunefarm.tuner.search.measuring import runner_options
from tunefarm.tuner.search.strategy import check_strategy
from tunefarm.tuner.search.tasks import TuningTask
from tunefarm.tuner.search.time_plan import TimePlan

LOOKED_THROUGH = 200_000
"""A job looks for damage in databases of so many trials: 20 microseconds each on a Zen 5."""


def tune_model(request: JobRequest) -> TuneResult:
    """Tune a model's kernels into the settings' database; go on where an earlier run ended.

    Raises TunefarmError for a model that cannot be compiled, a database that cannot be used and a
    machine on which nothing can be measured. Ctrl-C ends it early with all results kept.
    """
    settings = request.settings
    check_job(settings)
    graph, request = read_model(request)
    return tune_lowered(request, LoweredModel(graph, numerics_of(settings)))


def read_model(request: JobRequest) -> tuple[Graph, JobRequest]:
    """The model of a job, and the request with the stamp of its file.

    Raises ImportModelError also for a file that changes meanwhile.
    """
    stamped = Future(lambda: ModelStamp.of(request.model))
    graph = import_model(request.model, request.shapes, limits_of(request.settings))
    stamp = stamped.result()
    if stamp is None or stamp.is_touched():
        raise ImportModelError(
            f"{os.fspath(request.model)} changed while it was read", hint="run the command again"
        )
    return graph, replace(request, stamp=stamp)


def check_job(settings: Settings) -> None:
    """Raise SettingsError, before a model is read, for what no job can be done with."""
    check_strategy(settings.search.sampler)
    check_runner(settings.measure.runner, runner_options(settings, target_of(settings)))


def check_model(model: str, settings: Settings, shapes: Shapes, known: dict[str, int]) -> int:
    """How many distinct kernels the model has; of one that is `known` they are not counted again.

    Raises TunefarmError where `tune` would, for a model that cannot be read and for settings with
    which no job can be done. Where the precision is chosen later, the kernels are those without.
    """
    check_job(settings)
    compile = settings.compile
    asked = repr((model, shapes, compile.numerics, compile.target, compile.targets))
    if asked not in known:
        known[asked] = _kernel_count(model, settings, shapes)
    return known[asked]


def _kernel_count(model: str, settings: Settings, shapes: Shapes) -> int:
    compile = settings.compile
    numerics = Numerics.of("default" if compile.numerics in CHOSEN else compile.numerics)
    limits = limits_of(settings)
    target = targets_of(settings)[0]
    found: set[str] = set()
    for program in programs_of(shapes):
        graph = import_model(model, program.shapes, limits)
        kernels = kernels_of(graph, target, limits=limits, numerics=numerics)
        found |= distinct_kernels(kernels).keys()
    return len(found)


def tune_lowered(
    request: JobRequest,
    lowered: LoweredModel,
    built_from: tuple[str, Settings] | None = None,
) -> TuneResult:
    """As `tune_model`, of a model that was imported; the request's is what it is called.

    `built_from` is as in `JobModels`; None where the graph is built as it is.
    """
    with Store.open(request.settings.database.url, leave_damaged=True) as store:
        if queries.last_trial(store) <= LOOKED_THROUGH:
            store.leave_damaged()  # of what opening leaves to readers too
        job = _job(request, lowered, store, built_from)
        store.patience = job.patience
        job.register(request.command, request.stamp)
        worker = threading.current_thread()

        def stop(by: str) -> bool:
            text = interrupt_thread(worker)
            if text:
                request.progress.message(f"{by} asks this job to stop")
            return text

        state: JobState = "failed"
        results: list[TargetResult] = []
        try:
            with heartbeat(store, job.id, stop), patient_until(job.time.end):
                job.prepare()
                end = job.search()
                while end is not End.INTERRUPTED:
                    results = [
                        TargetResult(
                            target.cpu,
                            *job.confirm(target),
                            elsewhere=not job.models.is_here(target),
                            exchanged=job.exchanged[target.key],
                        )
                        for target in job.targets
                    ]
                    gains = [model_gain(item.latency, job.size_plan) for item in results]
                    if end is not End.TARGET_GAIN or job.reaches(gains):
                        break
                    if not job.goes_on(gains):
                        end = End.TIME
                        break
                    end, results = job.search(), []
            if (shown := _shown(results)) is not None:
                request.monitor.confirm(model_gain(shown.latency, job.size_plan))
            state = "interrupted" if end is End.INTERRUPTED else "finished"
        except KeyboardInterrupt:
            end, state = End.INTERRUPTED, "interrupted"
        except LeaseTakenError:
            state = "lost"
            raise
        finally:
            store.finish_job(job.id, state, request.monitor.end(job.statuses()).to_json())
        return _result(request, job, store, end, results)


def _job(
    request: JobRequest,
    lowered: LoweredModel,
    store: Store,
    built_from: tuple[str, Settings] | None,
) -> Job:
    """The job with its tasks, of which nothing is measured yet."""
    settings, graph, targets = request.settings, lowered.graph, targets_of(request.settings)
    cost_model = BoostedTrees(settings.search.seed, settings.search.cost_model)
    pretrained = load_pretrained()
    if pretrained.problem:
        request.progress.message(pretrained.problem)
    models = JobModels(
        name=Path(request.model).name,
        graph=graph,
        settings=settings,
        targets=targets,
        store=store,
        built_from=built_from or (structural_hash(graph), settings),
        time=TimePlan(settings.search.minutes, request.started),
        notify=request.progress.message,
        numerics=lowered.numerics,
    )

    def make() -> tuple[list[TuningTask], list[TrainingData]]:
        sources = [
            task_source(store, graph, lowered.numerics, target, settings) for target in targets
        ]
        tasks = make_tasks(sources, settings, cost_model, pretrained.model)
        return tasks, known_of_others(sources, settings, pretrained.model)

    return Job(models, make, cost_model, request.progress, request.make_runner, request.monitor)


def _result(
    request: JobRequest, job: Job, store: Store, end: End, results: list[TargetResult]
) -> TuneResult:
    shown = _shown(results)
    return TuneResult(
        model=os.fspath(request.model),
        database=store.name,
        job=job.id,
        end=end,
        measured=job.measured,
        seconds=time.monotonic() - request.started,
        overhead=job.overhead,
        tasks=tuple(job.statuses(end)),
        latency=None if shown is None else shown.latency,
        build=None if shown is None else shown.build,
        known=job.known,
        exchanged=Exchanged() if shown is None else shown.exchanged,
        targets=tuple(results),
        size_plan=job.size_plan,
        moved=store.moved,
        lost=store.lost,
        changed="" if request.stamp is None else request.stamp.difference(),
        target_gain=request.settings.search.target_gain,
    )


def _shown(results: Sequence[TargetResult]) -> TargetResult | None:
    """The first target whose model was measured here, else the first one."""
    here = (item for item in results if item.latency is not None and not item.elsewhere)
    return next(here, results[0] if results else None)
