"""A session on synthetic tasks with a runner in this process: nothing lost, nothing repeated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from compiler.errors import MeasureError
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.serialize import kernel_to_json
from compiler.kernels.workload_key import workload_key
from compiler.schedule.space import Candidate, ScheduleSpace
from db import queries
from db.records import TargetRecord, TaskKey, WorkloadRecord
from db.store import Store
from measure.job import MeasureRequest, MeasureResult, Status
from tests.tuner.synthetic import TARGET, latency, matmul_kernel, small_space, tile_space
from tuner.budget import Budget, End, Limits, TaskProgress
from tuner.cost_model import BoostedTrees
from tuner.features import FeatureExtractor, FeatureLayout
from tuner.finalists import FinalistOptions, Finalists, refresh
from tuner.progress import NoProgress
from tuner.records import best_record, is_confirmed, schedule_hash
from tuner.sampler import Score, TaskSearch, make_sampler
from tuner.session import MAX_MACHINERY_FAILURES, SessionOptions, TuningSession
from tuner.tasks import TuningTask, plan


class SyntheticRunner:
    """Answers at once: the latency of the candidate that a schedule stands for."""

    def __init__(self, capacity: int = 4) -> None:
        self.capacity = capacity
        self.requests: list[MeasureRequest] = []
        self.answers: dict[tuple[str, str], float] = {}
        self.noise = 0.0
        self._ready: list[MeasureResult] = []

    @property
    def pending(self) -> int:
        return len(self._ready)

    def submit(self, request: MeasureRequest) -> None:
        self.requests.append(request)
        self._ready.append(self.answer(request))

    def answer(self, request: MeasureRequest) -> MeasureResult:
        key = request.workload_key, schedule_hash(request.schedule)
        seconds = self.answers[key]
        if math.isinf(seconds):
            return MeasureResult(request.request_id, Status.CRASHED, error="signal 11")
        seconds *= 1.0 + self.noise * (len(self.requests) % 3)
        return MeasureResult(
            request.request_id,
            Status.OK,
            samples=(seconds,) * 3,
            machine={"cpu": "made-up", "load": 0.5},
        )

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        self._ready = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Setting:
    """A store, a runner and tasks made anew for each run, as by a new process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store.open(path)
        self.runner = SyntheticRunner()
        self.session: TuningSession | None = None

    def tasks(self, model: BoostedTrees, *kinds: tuple[FusedKernel, ScheduleSpace, int]) -> None:
        layout = FeatureLayout.of([space for _, space, _ in kinds])
        self.store.add_targets([TargetRecord(TARGET.key, TARGET.to_json())])
        self.made: list[TuningTask] = []
        for kernel, space, occurrences in kinds:
            extract = FeatureExtractor(space, kernel, TARGET, layout)
            key = TaskKey(workload_key(kernel), TARGET.key, 1, "default", "1")
            value = kernel_to_json(kernel)
            self.store.add_workloads([WorkloadRecord(key.workload, kernel.name, value)])
            sampler = make_sampler("cost_model", space, scorer(model, extract), 0)
            default = plan(space, space.default())
            search = TaskSearch(space, sampler, seed=0, first=[default.candidate])
            progress = TaskProgress(occurrences)
            task = TuningTask(kernel, value, key, space, extract, search, progress, default)
            task.resume(queries.trials(self.store, key))
            self.made.append(task)
            answers = tile_answers() if space.size > 100 else self.answers(space)
            for hash, seconds in answers.items():
                self.runner.answers.setdefault((key.workload, hash), seconds)

    def answers(self, space: ScheduleSpace) -> dict[str, float]:
        candidates = map(space.candidate, range(space.size))
        return {plan(space, c).hash: self.latency(c) for c in candidates}

    def latency(self, candidate: Candidate) -> float:
        return 1e-3 / (1 + candidate.positions[0])

    def run(self, limits: Limits, *kinds: tuple[FusedKernel, ScheduleSpace, int]) -> End:
        model = BoostedTrees(0)
        self.tasks(model, *kinds)
        self.job = self.store.start_job("model", "hash", {}).id
        self.session = TuningSession(
            self.made,
            self.runner,
            self.store,
            model,
            Budget(limits),
            SessionOptions(4, {}),
            job=self.job,
            progress=NoProgress(),
        )
        return self.session.run()

    def confirm(self, *, out_of_time: bool = False) -> None:
        options = FinalistOptions(rounds=3)
        finalists = Finalists(self.store, job=self.job, seed=0, options=options)
        finalists.run(self.made, self.runner, {}, lambda: out_of_time, lambda: None)


def scorer(model: BoostedTrees, extract: FeatureExtractor) -> Score:
    return lambda candidates: model.predict(extract(candidates))


@cache
def tile_answers() -> dict[str, float]:
    space = tile_space()
    candidates = map(space.candidate, range(space.size))
    return {plan(space, c).hash: latency(space, c) for c in candidates}


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path / "tuning.db")
    yield made
    made.store.close()


TILES = (matmul_kernel(), small_space(9), 1)
OTHER = (matmul_kernel(7, 13, 97), small_space(7), 3)


def test_every_result_is_in_the_store(setting: Setting) -> None:
    assert setting.run(Limits(), TILES, OTHER) is End.EXHAUSTED
    counts = [len(queries.trials(setting.store, task.key)) for task in setting.made]
    assert counts == [9, 7]
    assert len(setting.runner.requests) == 16
    best = queries.best_trial(setting.store, setting.made[0].key)
    assert best is not None
    assert best.choices == {"tile": 9}
    assert best.machine == {"cpu": "made-up"}
    assert best.conditions == {"load": 0.5}


def test_the_default_schedule_is_measured_first(setting: Setting) -> None:
    setting.run(Limits(trials=2), TILES, OTHER)
    hashes = [schedule_hash(request.schedule) for request in setting.runner.requests]
    assert hashes == [task.default.hash for task in setting.made]
    assert all(math.isfinite(task.default_latency) for task in setting.made)


def test_a_second_run_of_the_same_job_measures_nothing(setting: Setting) -> None:
    assert setting.run(Limits(trials=10), TILES, OTHER) is End.TOTAL_TRIALS
    before = len(setting.runner.requests)
    assert setting.run(Limits(trials=10), TILES, OTHER) is End.TOTAL_TRIALS
    assert len(setting.runner.requests) == before == 10


def test_a_longer_run_goes_on_without_repeating(setting: Setting) -> None:
    setting.run(Limits(trials=6), TILES, OTHER)
    setting.run(Limits(trials=13), TILES, OTHER)
    measured = [(r.workload_key, schedule_hash(r.schedule)) for r in setting.runner.requests]
    assert len(measured) == len(set(measured)) == 13
    assert sum(task.progress.trials for task in setting.made) == 13


def test_earlier_results_train_the_model_of_the_next_run(setting: Setting) -> None:
    space = tile_space()
    kind = (matmul_kernel(), space, 1)
    setting.run(Limits(trials=40), kind)
    setting.run(Limits(trials=40), kind)
    task = setting.made[0]
    assert len(task.rows) == len(task.latencies) == 40
    assert task.progress.best == min(task.latencies)


def test_schedules_equal_to_a_measured_one_are_not_measured_again(setting: Setting) -> None:
    space = small_space(4)
    sketch = space.sketches[0]
    build = sketch.build
    same = replace(sketch, build=lambda choices: build({"tile": min(int(str(choices["tile"])), 2)}))
    setting.run(Limits(), (matmul_kernel(), ScheduleSpace([same]), 1))
    hashes = [schedule_hash(request.schedule) for request in setting.runner.requests]
    assert len(hashes) == len(set(hashes)) == 2


def test_failures_are_recorded_with_their_text(setting: Setting) -> None:
    setting.latency = lambda candidate: math.inf  # type: ignore[method-assign]
    assert setting.run(Limits(failing_after=4), TILES) is End.FAILING
    records = queries.trials(setting.store, setting.made[0].key)
    assert {record.status for record in records} == {"crashed"}
    assert {record.error for record in records} == {"signal 11"}
    assert best_record(records) is None


def test_a_space_of_one_point_is_measured_once(setting: Setting) -> None:
    assert setting.run(Limits(), (matmul_kernel(), small_space(1), 1)) is End.EXHAUSTED
    assert len(setting.runner.requests) == 1


def test_stop_keeps_what_was_measured_and_submits_no_more(setting: Setting) -> None:
    class Stopping(SyntheticRunner):
        def results(self, timeout: float | None = None) -> list[MeasureResult]:
            if len(self.requests) >= 6:
                assert setting.session is not None
                setting.session.stop()
            return super().results(timeout)

    setting.runner = Stopping(capacity=2)
    assert setting.run(Limits(), TILES, OTHER) is End.INTERRUPTED
    assert len(setting.runner.requests) == 6
    recorded = [
        record for task in setting.made for record in queries.trials(setting.store, task.key)
    ]
    assert len(recorded) == 6
    assert all(task.progress.pending == 0 for task in setting.made)


def test_failures_of_the_machinery_are_not_charged_to_the_candidate(setting: Setting) -> None:
    class Flaky(SyntheticRunner):
        def answer(self, request: MeasureRequest) -> MeasureResult:
            if len(self.requests) == 3:
                return MeasureResult(request.request_id, Status.INFRASTRUCTURE, error="lost")
            return super().answer(request)

    setting.runner = Flaky()
    setting.run(Limits(), TILES)
    task = setting.made[0]
    assert task.progress.trials == 8
    assert task.failures == 0
    setting.runner = SyntheticRunner()
    setting.run(Limits(), TILES)
    assert len(setting.runner.requests) == 1  # the lost one, and only that


def test_machinery_that_never_works_ends_the_session_with_an_error(setting: Setting) -> None:
    class Dead(SyntheticRunner):
        def answer(self, request: MeasureRequest) -> MeasureResult:
            return MeasureResult(request.request_id, Status.INFRASTRUCTURE, error="no worker")

    setting.runner = Dead()
    with pytest.raises(MeasureError, match="no worker"):
        setting.run(Limits(), (matmul_kernel(), tile_space(), 1))
    assert len(setting.runner.requests) <= MAX_MACHINERY_FAILURES + setting.runner.capacity


def test_the_same_seed_measures_the_same_candidates(setting: Setting, tmp_path: Path) -> None:
    kind = (matmul_kernel(), tile_space(), 1)
    setting.run(Limits(trials=60), kind)
    other = Setting(tmp_path / "other.db")
    other.run(Limits(trials=60), kind)
    other.store.close()
    first, again = (
        [schedule_hash(request.schedule) for request in runner.requests]
        for runner in (setting.runner, other.runner)
    )
    assert first == again


def test_finalists_meet_in_interleaved_rounds_and_are_flagged(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    before = len(setting.runner.requests)
    setting.confirm()
    hashes = [schedule_hash(r.schedule) for r in setting.runner.requests[before:]]
    group = len(set(hashes))
    assert setting.made[0].default.hash in hashes
    assert len(hashes) == 3 * group
    for start in range(0, len(hashes), group):
        assert set(hashes[start : start + group]) == set(hashes)
    records = queries.trials(setting.store, setting.made[0].key)
    assert sum(map(is_confirmed, records)) == len(hashes)


def test_confirmed_finalists_are_not_measured_again(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    setting.confirm()
    before = len(setting.runner.requests)
    setting.run(Limits(), OTHER)
    setting.confirm()
    assert len(setting.runner.requests) == before
    assert setting.made[0].progress.trials == 7  # confirmations are no trials


def test_the_confirmed_median_decides_and_not_a_lucky_trial(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    task = setting.made[0]
    lucky = plan(task.space, Candidate("only", (6,)))
    setting.runner.answers[task.key.workload, lucky.hash] = 1.0
    setting.confirm()
    best = best_record(queries.trials(setting.store, task.key))
    assert best is not None
    assert best.schedule_hash != lucky.hash
    refresh(setting.made, setting.store)
    assert task.confirmed_latency == best.latency


def test_finalists_stop_when_time_is_up(setting: Setting) -> None:
    setting.run(Limits(), OTHER)
    before = len(setting.runner.requests)
    setting.confirm(out_of_time=True)
    assert len(setting.runner.requests) == before
