"""Searches replayed on recorded measurements: the same to the bit, and better than chance.

The figures of 20 seeds are in figures.md (`python -m tests.benchmarks.search`); here are a few.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from tests.benchmarks.search import WAYS, held_out, recorded_data, trace
from tests.processes import python
from tests.tuner.recorded import FILE, RecordedKernel, load
from tests.tuner.setting import scorer
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.schedule.space import Candidate
from tunefarm.db.records import TargetRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.measure.farm.replay_runner import RecordKey, ReplayRunner
from tunefarm.measure.measurement import MeasureResult
from tunefarm.tuner.model.cost_model import BoostedTrees, UntrainedModel
from tunefarm.tuner.model.features import FeatureExtractor
from tunefarm.tuner.records.trials import task_key
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.search.budget import Budget, End, Limits, TaskProgress
from tunefarm.tuner.search.session import SessionOptions, TuningSession
from tunefarm.tuner.search.strategy import SearchProblem, make_strategy
from tunefarm.tuner.search.tasks import Planned, TaskSearch, TuningTask, plan

KERNELS = {item.name: item for item in load()}
RANDOM, TPE, OURS, UNSEEDED = WAYS


@pytest.fixture(params=sorted(KERNELS))
def item(request: pytest.FixtureRequest) -> RecordedKernel:
    return KERNELS[request.param]


def test_the_data_set_is_whole(item: RecordedKernel) -> None:
    assert len(item.latencies) == len(item.statuses) == len(item.anchors) == item.space.size
    assert len(set(item.schedules.tolist())) >= 1500
    assert (item.latencies > 0).all()
    assert np.isfinite(item.latencies).mean() > 0.95
    assert item.machine["fingerprint"]
    assert FILE.stat().st_size < 6 << 20


def test_equal_schedules_share_one_measurement(item: RecordedKernel) -> None:
    """Which candidates do is what the sketches still say."""
    hashes: dict[str, int] = {}
    for number in range(0, item.space.size, 7):
        hash = plan(item.space, item.space.candidate(number)).hash
        assert hashes.setdefault(hash, int(item.schedules[number])) == item.schedules[number]


def test_a_search_is_the_same_each_time(item: RecordedKernel) -> None:
    first = trace(item, UNSEEDED, 3, most=24, until=0.0)
    assert first == trace(item, UNSEEDED, 3, most=24, until=0.0)
    assert first != trace(item, UNSEEDED, 4, most=24, until=0.0)


@pytest.mark.nightly
def test_another_process_searches_the_same_way() -> None:
    """Neither the hashes of strings nor the time of day have a say."""
    code = (
        "import json, tests.tuner.search.test_replay as t\n"
        "item = t.KERNELS['depthwise 144x56']\n"
        "print(json.dumps(t.trace(item, t.UNSEEDED, 5, most=24, until=0.0)))"
    )
    outputs = [
        python("-c", code, cwd=FILE.parents[2], check=True, PYTHONHASHSEED=seed).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(json.loads(outputs[0])) >= 24


def test_ours_needs_few_trials() -> None:
    """Against drawing at random: six times fewer over all, and never less than half."""
    ratios = []
    for kernel in KERNELS.values():
        ours = median(len(trace(kernel, OURS, seed)) for seed in range(3))
        chance = median(len(trace(kernel, RANDOM, seed)) for seed in range(3))
        ratios.append(chance / ours)
    assert median(ratios) >= 6
    assert min(ratios) >= 1.5  # 20 seeds give 9; three may miss a lot by chance


def test_the_model_ranks_what_it_has_not_seen() -> None:
    """Held-out rank correlation after 256 trials, and the best of the eight it likes most."""
    correlations, found = [], []
    for kernel in KERNELS.values():
        extract = FeatureExtractor(kernel.space, kernel.kernel, kernel.target)
        order = np.random.default_rng(0).permutation(
            np.unique(kernel.schedules, return_index=True)[1]
        )
        model = BoostedTrees(0)
        model.fit(recorded_data(kernel, extract, order[:256].tolist(), 0))
        learnt = held_out(kernel, extract, order[256:], model)
        guessed = held_out(kernel, extract, order[256:], UntrainedModel(0))
        correlations.append((learnt[0], guessed[0]))
        found.append(learnt[2])
    learnt_mean, guessed_mean = np.mean(correlations, axis=0)
    assert learnt_mean > 0.7
    assert learnt_mean > guessed_mean + 0.1
    assert median(found) < 1.06


@dataclass
class RecordedTask(TuningTask):
    """What is planned has a recorded answer."""

    item: RecordedKernel = field(kw_only=True)
    answers: dict[RecordKey, MeasureResult] = field(kw_only=True)

    def plan(self, candidate: Candidate) -> Planned:
        key, answer = self.item.answer(self.item.space.number(candidate))
        self.answers[key] = answer
        return super().plan(candidate)


class Replay:
    """A session on recorded kernels, each of which the model calls so often."""

    def __init__(self, items: Sequence[tuple[RecordedKernel, int]], store: Store) -> None:
        self.store = store
        self.model = BoostedTrees(0)
        self.answers: dict[RecordKey, MeasureResult] = {}
        self.tasks = [self._task(item, times) for item, times in items]

    def _task(self, item: RecordedKernel, times: int) -> TuningTask:
        key = task_key(item.key, item.target, 1, "default")
        value = kernel_to_json(item.kernel)
        self.store.add([TargetRecord(item.target.key, item.target.to_json())])
        self.store.add([WorkloadRecord(item.key, item.name, value)])
        extract = FeatureExtractor(item.space, item.kernel, item.target)
        problem = SearchProblem(
            item.space, scorer(self.model, extract), 0, features=extract.of_rows
        )
        strategy = make_strategy("cost_model", problem)
        default = plan(item.space, item.space.default())
        search = TaskSearch(item.space, strategy, first=[default.candidate])
        progress = TaskProgress(times)
        task = RecordedTask(
            item.kernel,
            value,
            key,
            item.space,
            extract,
            search,
            progress,
            default,
            item=item,
            answers=self.answers,
        )
        task.plan(default.candidate)
        return task

    def run(self, limits: Limits, budget: type[Budget] = Budget) -> End:
        session = TuningSession(
            self.tasks,
            ReplayRunner(self.answers),
            self.store,
            self.model,
            budget(limits),
            SessionOptions(8, {}, background=False),
            job=self.store.start_job("recorded", "hash", {}).id,
            progress=Progress(),
        )
        end = session.run()
        assert session.overhead.total > 0
        return end


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[Store]]:
    opened = [Store.open(tmp_path / f"{name}.db") for name in ("one", "two")]
    yield opened
    for store in opened:
        store.close()


def test_a_session_finds_a_good_schedule_and_knows_when_to_stop(
    item: RecordedKernel, stores: list[Store]
) -> None:
    """It ends by itself, long before the space does, within a tenth of the best."""
    replay = Replay([(item, 1)], stores[0])
    end = replay.run(Limits(patience=150, min_gain=0.01))
    progress = replay.tasks[0].progress
    assert end in (End.CONVERGED, End.PATIENCE)
    assert progress.trials < 600
    assert progress.best <= 1.10 * item.best


def test_a_replayed_session_is_the_same_to_the_bit(stores: list[Store]) -> None:
    histories = []
    for store in stores:
        replay = Replay([(KERNELS["conv3x3 256x14"], 1)], store)
        replay.run(Limits(trials=64))
        (task,) = replay.tasks
        histories.append((task.candidates, task.progress.history))
    assert histories[0] == histories[1]
    assert len(histories[0][1]) == 64


def all_together(
    folder: Path, average: int, budget: type[Budget] = Budget
) -> tuple[list[TuningTask], End]:
    """All recorded kernels after a session with so many trials of each on average."""
    with Store.open(folder / "recorded.db") as store:
        replay = Replay([(item, 1) for item in KERNELS.values()], store)
        limits = Limits(trials_per_task=average, patience=32, nothing_to_win=0.02)
        return replay.tasks, replay.run(limits, budget)


@pytest.fixture(scope="module")
def ten_on_average(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[TuningTask], End]:
    return all_together(tmp_path_factory.mktemp("together"), 10)


@pytest.mark.parametrize("average", [10, 48])
def test_trials_go_where_the_model_gains_to_the_end(
    tmp_path: Path, average: int, request: pytest.FixtureRequest
) -> None:
    """Of all recorded kernels together: those that still gain get what the others leave."""
    is_shared = average == 10
    tasks, end = (
        request.getfixturevalue("ten_on_average") if is_shared else all_together(tmp_path, average)
    )
    trials = [task.progress.trials for task in tasks]
    assert sum(trials) <= average * len(KERNELS)
    assert max(trials) > average > min(trials)
    settled = Budget(Limits(patience=32, nothing_to_win=0.02))
    open_tasks = [task for task in tasks if settled.task_end(task.progress) is None]
    assert not open_tasks or end is End.TOTAL_TRIALS


@pytest.mark.nightly
def test_the_model_is_faster_than_with_as_many_trials_of_each_kernel(
    tmp_path: Path, ten_on_average: tuple[list[TuningTask], End]
) -> None:
    capped, _ = all_together(tmp_path, 10, Capped)
    assert sum(task.progress.trials for task in capped) == 10 * len(KERNELS)
    assert model_seconds(ten_on_average[0]) < model_seconds(capped)


class Capped(Budget):
    """A budget that gives no task more than its average."""

    def task_end(self, task: TaskProgress) -> End | None:
        used_up = task.trials + task.pending >= (self.limits.trials_per_task or 0)
        return End.EXHAUSTED if used_up else super().task_end(task)

    def batch(self, tasks: Sequence[TaskProgress], index: int, size: int) -> int:
        own = (self.limits.trials_per_task or 0) - tasks[index].trials - tasks[index].pending
        return min(super().batch(tasks, index, size), own)


def model_seconds(tasks: Sequence[TuningTask]) -> float:
    """Of one call of each, with the fastest schedule that was measured."""
    return sum(min(task.known.values()) for task in tasks)
