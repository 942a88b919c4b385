"""The whole model has the last word: what finalists settled is applied unless that is slower."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.tuner.synthetic import neighbours
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import load_settings
from tunefarm.db import queries
from tunefarm.db.records import BestRecord, TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import LogRatio
from tunefarm.measure.farm.replay_runner import ReplayRunner
from tunefarm.measure.placement import buffer_sizes
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner.building.size_plan import size_plan
from tunefarm.tuner.confirm import latency as latency_module
from tunefarm.tuner.confirm import whole_model
from tunefarm.tuner.confirm.finalists import Settled
from tunefarm.tuner.confirm.latency import ModelLatency, compare_models
from tunefarm.tuner.job import Job
from tunefarm.tuner.job_models import JobModels
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.records.model_latencies import newest
from tunefarm.tuner.records.size_ranges import SizePlan, SizeRange
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.search.budget import End
from tunefarm.tuner.search.make_tasks import TaskSource, distinct_kernels, make_tasks
from tunefarm.tuner.search.pairwise_estimates import Estimate
from tunefarm.tuner.search.tasks import TuningTask, plan
from tunefarm.tuner.search.time_plan import TimePlan


class Setting:
    """A job on the tiny model whose finalists have settled on another schedule of one kernel."""

    def __init__(self, path: Path, store: Store) -> None:
        settings = load_settings("ci", environment={})
        onnx.save(tiny_model(), path)
        self.graph = import_model(path)
        kernels = distinct_kernels(kernels_of(self.graph, host_target()))
        cost_model = BoostedTrees(settings.search.seed, settings.search.cost_model)
        self.store = store
        tasks = make_tasks([TaskSource(host_target(), kernels)], settings, cost_model)
        progress = Progress()
        models = JobModels(
            name="tiny",
            graph=self.graph,
            settings=settings,
            targets=(host_target(),),
            store=store,
            built_from=(structural_hash(self.graph), settings),
            time=TimePlan(settings.search.minutes, time.monotonic()),
            notify=progress.message,
        )
        self.job = Job(
            models, lambda: (tasks, []), cost_model, progress, lambda *_: ReplayRunner({})
        )
        self.job.register()
        self.job.prepare()
        self.task = next(task for task in self.job.tasks if "conv" in task.kernel.name)
        default = self.record(self.task, self.task.default.schedule, 2e-6)
        other = plan(self.task.space, neighbours(self.task.space, self.task.default.candidate)[0])
        rival = self.record(self.task, other.schedule, 1e-6)
        self.default, self.rival = (self.best(trial) for trial in (default, rival))
        self.job.settled = [
            Settled(self.task, self.rival, self.default, Estimate(math.log(0.4), 0.01))
        ]

    def record(self, task: TuningTask, schedule: list[object], latency: float) -> TrialRecord:
        trial = TrialRecord(
            task.key, "final", "tiled", {}, schedule, "ok", latency=latency, samples=(latency,)
        )
        self.store.add([trial])
        return trial

    def best(self, trial: TrialRecord) -> BestRecord:
        assert trial.latency is not None
        ratio = trial.latency / 2e-6
        met = (trial.schedule_hash,)
        return BestRecord(
            trial.key, trial.schedule_hash, "final", 2e-6, ratio, ratio, ratio, met, self.job.id
        )


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with Store.open(tmp_path / "tuning.db") as store:
        yield Setting(tmp_path / "tiny.onnx", store)


def latency_of_model(*, is_slower: bool) -> ModelLatency:
    return ModelLatency(1.0, 2.0, 0.0, 0.0, 2.0, 1.9, 2.1, former=1.0, is_slower=is_slower)


@pytest.mark.parametrize("is_slower", [False, True])
def test_a_slower_model_keeps_the_former_schedules(
    is_slower: bool, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = latency_of_model(is_slower=is_slower)
    monkeypatch.setattr(whole_model, "compare_models", lambda *_: found)
    latency, _ = setting.job.confirm(host_target())
    assert latency is found
    best = queries.best(setting.store, setting.task.key)
    assert best is not None
    wanted = setting.default if is_slower else setting.rival
    assert best[0].schedule_hash == wanted.schedule_hash


def test_the_new_model_is_really_built_and_measured(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured for real; which one is faster is not what is asked here."""

    def compare(*models: Any) -> ModelLatency:
        return replace(compare_models(*models), is_slower=False)

    monkeypatch.setattr(whole_model, "compare_models", compare)
    latency, report = setting.job.confirm(host_target())
    assert latency is not None and latency.tuned > 0 and latency.untuned > 0
    assert latency.former is None  # nothing was tuned before: the untuned model is the former one
    used = {use.report.key: use.report for use in report.kernels}
    assert used[workload_key(setting.task.kernel)].schedule_source == "tuned"
    assert setting.task.confirmed_latency == 1e-6


def test_the_former_model_takes_part_when_it_was_tuned_before(setting: Setting) -> None:
    setting.store.add([setting.rival])
    earlier = setting.rival
    setting.job.register()
    candidates = neighbours(setting.task.space, setting.task.default.candidate)
    other = plan(setting.task.space, candidates[-1])
    newest = setting.best(setting.record(setting.task, other.schedule, 0.5e-6))
    setting.job.settled = [Settled(setting.task, newest, earlier, Estimate(0.0, 0.01))]
    latency, _ = setting.job.confirm(host_target())
    assert latency is not None and latency.former is not None and latency.former > 0


def test_a_job_that_keeps_every_default_measures_one_build(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trials are of default schedules: the tuned build is the untuned one to the byte."""
    measured: list[int] = []
    real = latency_module.interleaved_latencies

    def spy(programs: Sequence[Any], *rest: Any) -> list[list[float]]:
        measured.append(len(programs))
        return real(programs, *rest)

    monkeypatch.setattr(latency_module, "interleaved_latencies", spy)
    setting.store.add([setting.default])
    setting.job.settled = [
        Settled(setting.task, setting.default, setting.default, Estimate(0.0, 0.01))
    ]
    latency, report = setting.job.confirm(host_target())
    assert {use.report.schedule_source for use in report.kernels} != {"default"}
    assert set(measured) == {1}
    assert latency is not None and latency.is_unchanged and latency.tuned == latency.untuned
    recorded = newest(setting.store)
    assert recorded is not None and recorded.times.over_untuned is not None
    assert recorded.times.over_untuned.is_unchanged


def test_without_anything_new_there_is_nothing_to_compare(setting: Setting) -> None:
    setting.job.settled = []
    setting.store.add([setting.rival])
    latency, _ = setting.job.confirm(host_target())
    assert latency is not None and latency.former is None
    best = queries.best(setting.store, setting.task.key)
    assert best is not None and best[0].schedule_hash == setting.rival.schedule_hash


def test_every_task_says_why_it_ended(setting: Setting) -> None:
    job = setting.job
    assert {status.ended for status in job.statuses()} == {""}
    job.tasks[0].progress.exhausted = True
    ended = [status.ended for status in job.statuses(End.TIME)]
    assert ended[0] == End.EXHAUSTED.value
    assert set(ended[1:]) == {End.TIME.value}


def test_every_task_knows_where_the_model_has_its_buffers(setting: Setting) -> None:
    for task in setting.job.tasks:
        assert task.timed_at == (task.placements[0].to_json(),)
        task.placements[0].spans(buffer_sizes(task.kernel), 1000)


def test_statuses_tell_what_another_placement_does(setting: Setting) -> None:
    found = LogRatio(0.1, 0.01, 28)
    setting.job.placements = {setting.task.key: found}
    told = {status.key: status.placement for status in setting.job.statuses()}
    assert told.pop(setting.task.key.workload) == found
    assert set(told.values()) == {None}


def test_a_plan_for_sizes_is_recorded_for_what_a_build_begins_with(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobModels, "is_here", lambda *_: False)  # nothing is measured
    models, built_from = setting.job.models, "as it was imported"
    ranges = tuple(SizeRange({"n": ends}, {}) for ends in ((1, 4), (5, 9)))
    models.size_plans = {host_target().key: SizePlan(ranges, {})}
    settings = load_settings("ci", {"compile.numerics": "int8"}, environment={})
    models.built_from = built_from, settings
    setting.job.confirm(host_target())
    found, _ = size_plan(setting.store, built_from, settings, host_target())
    assert found is not None and [dict(item.bounds) for item in found.ranges] == [
        {"n": (1, 4)},
        {"n": (5, 9)},
    ]
