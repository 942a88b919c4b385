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
from tunefarm.compiler.errors import CoresBusyError, VerifyError
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.pipeline import compile_model, kernels_of
from tunefarm.compiler.runtime.artefact.seal import code_digest
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import load_settings
from tunefarm.db import queries
from tunefarm.db.records import BestRecord, TrialRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import Comparison, LogRatio
from tunefarm.measure.farm.replay_runner import ReplayRunner
from tunefarm.measure.placement import buffer_sizes
from tunefarm.measure.sandbox.import_model import import_model
from tunefarm.tuner import job_models
from tunefarm.tuner.building.apply_best import choose_from
from tunefarm.tuner.building.size_plan import size_plan
from tunefarm.tuner.confirm import latency as latency_module
from tunefarm.tuner.confirm import whole_model
from tunefarm.tuner.confirm.exchange import DEFAULT, TUNED, InModel
from tunefarm.tuner.confirm.finalists import Settled
from tunefarm.tuner.confirm.latency import ModelLatency, compare_models
from tunefarm.tuner.job import Job
from tunefarm.tuner.job_models import JobModels
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.records.model_latencies import newest
from tunefarm.tuner.records.size_ranges import SizePlan, SizePoint, SizeRange
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


def latency_of_model(ratio: float, *, is_slower: bool = False) -> ModelLatency:
    kept = Comparison(1.0, 1.0, 1.0, 9) if is_slower else None
    bounds = ratio, 0.95 * ratio, 1.05 * ratio
    return ModelLatency(1.0, ratio, 0.0, 0.0, *bounds, former=0.9, is_slower=is_slower, kept=kept)


def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_models, "exchange_kernels", lambda *_: {})


def test_a_job_records_by_which_table_of_its_machine_it_chose(setting: Setting) -> None:
    (job,) = queries.jobs(setting.store)
    assert job.settings["machines"] == {host_target().key: host_target().machine.digest}


@pytest.mark.parametrize("is_slower", [False, True])
def test_a_slower_model_keeps_the_former_schedules(
    is_slower: bool, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_exchange(monkeypatch)
    found = latency_of_model(2.0 if is_slower else 0.5, is_slower=is_slower)
    monkeypatch.setattr(whole_model, "compare_models", lambda *_: found)
    latency, _ = setting.job.confirm(host_target())
    assert latency is found
    best = queries.best(setting.store, setting.task.key)
    assert best is not None
    wanted = setting.default if is_slower else setting.rival
    assert best[0].schedule_hash == wanted.schedule_hash


def test_what_was_settled_stays_where_others_hold_the_cores(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> ModelLatency:
        raise CoresBusyError("core 1 was not free")

    no_exchange(monkeypatch)
    monkeypatch.setattr(whole_model, "compare_models", busy)
    latency, _ = setting.job.confirm(host_target())
    assert latency is None
    assert applied(setting).schedule_hash == setting.rival.schedule_hash


def no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are really run, and nothing that is found of their times decides."""

    def compare(*models: Any) -> ModelLatency:
        found = compare_models(*models)
        return replace(found, ratio=1.0, low=0.9, high=1.1, is_slower=False, kept=None)

    monkeypatch.setattr(whole_model, "compare_models", compare)


def shown(setting: Setting, fastest: int, ratio: float) -> dict[str, InModel]:
    """The rival's schedule takes `ratio` of the default one's time in the running model."""
    rival = Comparison(ratio, 0.99 * ratio, 1.01 * ratio, 80)
    over_default = {DEFAULT: Comparison(1.0, 1.0, 1.0, 80), TUNED: rival}
    return {setting.task.key.workload: InModel(fastest, over_default)}


def applied(setting: Setting) -> BestRecord:
    found = queries.best(setting.store, setting.task.key)
    assert found is not None
    return found[0]


def built(setting: Setting) -> str:
    """The code that a build makes of the records now."""
    settings = setting.job.settings
    choose = choose_from(setting.store, host_target(), settings.compile.threads, "default")
    return code_digest([compile_model(setting.graph, choose).spec])


def test_a_kernel_that_wins_alone_and_loses_in_the_model_is_not_applied(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_models, "exchange_kernels", lambda *_: shown(setting, DEFAULT, 1.1))
    latency, report = setting.job.confirm(host_target())
    best = applied(setting)
    assert best.schedule_hash == setting.default.schedule_hash
    assert (best.ratio, best.low, best.high) == (1.0, 1.0, 1.0)
    assert setting.rival.schedule_hash in best.met, "it would meet again"
    assert latency is not None and latency.is_unchanged
    assert built(setting) == code_digest([setting.job.models.untuned[host_target().key]])
    used = {use.report.key: use.report.record_id for use in report.kernels}
    trial = queries.trial_of(setting.store, best)
    assert trial is not None and used[setting.task.key.workload] == str(trial.number)


def test_what_the_running_model_shows_is_what_is_confirmed(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_models, "exchange_kernels", lambda *_: shown(setting, TUNED, 0.9))
    monkeypatch.setattr(whole_model, "compare_models", lambda *_: latency_of_model(0.9))
    setting.job.confirm(host_target())
    best = applied(setting)
    assert best.schedule_hash == setting.rival.schedule_hash
    assert (best.ratio, best.low, best.high) == (0.9, 0.99 * 0.9, 1.01 * 0.9)
    status = next(s for s in setting.job.statuses() if s.key == setting.task.key.workload)
    assert status.confirmed == 0.9
    found = setting.job.exchanged[host_target().key].kernels[setting.task.key.workload]
    assert found.compared.ratio == status.confirmed


@pytest.mark.parametrize("fault", ["its builds have other steps", ""])
def test_a_fault_in_the_exchange_leaves_what_finalists_settled(
    fault: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> dict[str, InModel]:
        if fault:
            raise VerifyError(fault)
        return {}

    monkeypatch.setattr(job_models, "exchange_kernels", fails)
    monkeypatch.setattr(whole_model, "compare_models", lambda *_: latency_of_model(0.5))
    setting.job.confirm(host_target())
    best = applied(setting)
    assert (best.schedule_hash, best.ratio) == (setting.rival.schedule_hash, setting.rival.ratio)
    exchanged = setting.job.exchanged[host_target().key]
    assert not exchanged.kernels and exchanged.why_not == (fault or "there was no time")


def test_a_model_slower_than_untuned_goes_back_to_it(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is hardly slower, and faster than what was applied before."""
    no_exchange(monkeypatch)
    slower = ModelLatency(1.0, 1.005, 0.0, 0.0, 1.005, 1.001, 1.009, former=1.1)
    monkeypatch.setattr(whole_model, "compare_models", lambda *_: slower)
    latency, _ = setting.job.confirm(host_target())
    assert applied(setting).schedule_hash == setting.default.schedule_hash
    assert latency is not None and latency.applied.is_unchanged and latency.former is None
    assert built(setting) == code_digest([setting.job.models.untuned[host_target().key]])
    recorded = newest(setting.store)
    assert recorded is not None and recorded.times.over_untuned is not None
    assert recorded.times.over_untuned.is_unchanged


def test_a_slower_model_first_gives_up_what_is_not_surely_faster(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsure = InModel(
        TUNED, {DEFAULT: Comparison(1.0, 1.0, 1.0, 80), TUNED: Comparison(0.99, 0.97, 1.01, 80)}
    )
    key = setting.task.key.workload
    monkeypatch.setattr(job_models, "exchange_kernels", lambda *_: {key: unsure})
    answers = iter([latency_of_model(1.2), latency_of_model(1.0)])
    monkeypatch.setattr(whole_model, "compare_models", lambda *_: next(answers))
    setting.job.confirm(host_target())
    assert applied(setting).schedule_hash == setting.default.schedule_hash
    assert next(answers, None) is None, "it was not measured again"


def test_schedules_that_no_finalist_met_are_exchanged_too(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build would take the fastest trial; the running model says that it loses."""
    setting.job.settled = []
    monkeypatch.setattr(job_models, "exchange_kernels", lambda *_: shown(setting, DEFAULT, 1.1))
    setting.job.confirm(host_target())
    best = applied(setting)
    assert (best.schedule_hash, best.job) == (setting.default.schedule_hash, setting.job.id)


def test_kernels_are_really_exchanged(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured for real; which one is faster is not what is asked here."""
    setting.job.time.build_seconds = 0.0
    setting.job.confirm(host_target())
    exchanged = setting.job.exchanged[host_target().key]
    assert not exchanged.why_not
    assert exchanged.kernels.keys() == {setting.task.key.workload}
    found = exchanged.kernels[setting.task.key.workload]
    assert found.over_default.keys() == {DEFAULT, TUNED}
    assert all(item.ratio > 0 for item in found.over_default.values())


def test_the_new_model_is_really_built_and_measured(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured for real; which one is faster is not what is asked here."""
    no_exchange(monkeypatch)
    no_difference(monkeypatch)
    latency, report = setting.job.confirm(host_target())
    assert latency is not None and latency.tuned > 0 and latency.untuned > 0
    assert latency.former is None  # nothing was tuned before: the untuned model is the former one
    used = {use.report.key: use.report for use in report.kernels}
    assert used[workload_key(setting.task.kernel)].schedule_source == "tuned"
    assert setting.task.confirmed_latency == 1e-6


def test_the_former_model_takes_part_when_it_was_tuned_before(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_exchange(monkeypatch)
    no_difference(monkeypatch)
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


def test_without_anything_new_there_is_nothing_to_compare(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_exchange(monkeypatch)
    no_difference(monkeypatch)
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


@pytest.mark.parametrize("ratio", [1.03, 1.0])
def test_a_model_that_is_slower_in_the_mean_of_its_sizes_goes_back_to_default_schedules(
    ratio: float, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, key = setting.job.models, host_target().key
    models.points = [SizePoint({"n": n}, (n,), {"n": (n, n)}) for n in (1, 2)]
    models.size_plans = {key: SizePlan((SizeRange({"n": (1, 2)}, {"conv": []}),), {})}
    monkeypatch.setattr(JobModels, "exchanges_kernels", False)
    monkeypatch.setattr(whole_model, "compare_models", lambda *_: latency_of_model(0.99))
    shown = {"n=1": (ratio - 0.04, ratio - 0.06, ratio - 0.02), "n=2": (1.1, 1.08, 1.12)}
    if ratio == 1.0:
        shown = dict.fromkeys(shown, (1.0, 0.98, 1.02))
    monkeypatch.setattr(
        job_models, "confirm_plan", lambda _b, _t, _u, whole, *_: replace(whole, ratios=shown)
    )
    latency, _ = setting.job.confirm(host_target())
    wanted = setting.default if ratio > 1.0 else setting.rival
    assert applied(setting).schedule_hash == wanted.schedule_hash
    assert latency is not None
    assert latency.is_slower == (ratio > 1.0)
    found = models.size_plans[key]
    assert [dict(item.schedules) for item in found.ranges] == [{} if ratio > 1 else {"conv": []}]
    if ratio > 1.0:
        assert latency.applied.ratio == 1.0 and not found.ratios
        assert built(setting) == code_digest([models.untuned[key]])
