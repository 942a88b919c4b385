"""A whole search of one recorded kernel, answered by a replay runner: no hardware, to the bit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tests.tuner.recorded import RecordedKernel, load
from tests.tuner.setting import scorer
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.db.records import TargetRecord, WorkloadRecord, hash_json
from tunefarm.db.store import Store
from tunefarm.measure.farm.replay_runner import Clock, RecordKey, ReplayRunner
from tunefarm.measure.measurement import LOST_TO_NOISE, MeasureResult
from tunefarm.tuner.confirm.finalists import LEAST_CHANCE, STARTERS
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.model.features import FeatureExtractor
from tunefarm.tuner.records.trials import task_key
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.reports.report import TaskStatus
from tunefarm.tuner.search.budget import Budget, End, Limits, TaskProgress
from tunefarm.tuner.search.session import SessionOptions, TuningSession
from tunefarm.tuner.search.strategy import SearchProblem, make_strategy
from tunefarm.tuner.search.tasks import TaskSearch, TuningTask, plan


@cache
def results_of(name: str) -> dict[RecordKey, MeasureResult]:
    """What a replay runner answers for the recorded kernel of this name."""
    (item,) = load([name])
    return item.results()


@cache
def truths_of(name: str) -> dict[str, float]:
    """The recorded seconds of a kernel's schedules, by their hashes; infinity for failures."""
    return {
        hash_json(json.loads(schedule)): result.latency
        for (_, schedule), result in results_of(name).items()
    }


class CountingRunner(ReplayRunner):
    """A replay runner that counts its answers: all, and those lost to noise."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.trials = 0
        self.lost = 0

    def results(self, timeout: float | None = None) -> list[MeasureResult]:
        ready = super().results(timeout)
        self.trials += len(ready)
        self.lost += sum(result.status in LOST_TO_NOISE for result in ready)
        return ready


class _Watched(Progress):
    """Asks after every answer."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask

    def update(self, tasks: Sequence[TaskStatus], elapsed: float, left: float | None) -> None:
        self._ask()


class ReplayedSearch:
    """A session on one recorded kernel, measured on a simulated core if there is a clock."""

    def __init__(
        self,
        item: RecordedKernel,
        store: Store,
        *,
        seed: int = 0,
        clock: Clock | None = None,
        capacity: int = 8,
    ) -> None:
        self.item, self.store = item, store
        key = task_key(item.key, item.target, 1, "default")
        value = kernel_to_json(item.kernel)
        store.add([TargetRecord(item.target.key, item.target.to_json())])
        store.add([WorkloadRecord(item.key, item.name, value)])
        self.runner = CountingRunner(results_of(item.name), clock=clock, capacity=capacity)
        self._model = BoostedTrees(seed)
        extract = FeatureExtractor(item.space, item.kernel, item.target)
        problem = SearchProblem(item.space, scorer(self._model, extract), seed)
        strategy = make_strategy("cost_model", problem)
        default = plan(item.space, item.space.default())
        search = TaskSearch(item.space, strategy, first=[default.candidate])
        self.task = TuningTask(
            item.kernel, value, key, item.space, extract, search, TaskProgress(1), default
        )

    def run(self, limits: Limits, watch: Callable[[], None] = lambda: None) -> End:
        """Search until a limit is reached; `watch` is called after every answer."""
        session = TuningSession(
            [self.task],
            self.runner,
            self.store,
            self._model,
            Budget(limits),
            SessionOptions(8, {}, background=False),
            job=self.store.start_job("recorded", "hash", {}).id,
            progress=_Watched(watch),
        )
        return session.run()

    @property
    def confirmed(self) -> float:
        """The true seconds of the fastest of those who would be nominated now.

        They are those whose probability of being the fastest is not small, and the default.
        """
        truths, beliefs = truths_of(self.item.name), self.task.ranking.beliefs
        chances = {} if beliefs is None else beliefs.probabilities()
        likely = [hash for hash, chance in chances.items() if chance >= LEAST_CHANCE][:STARTERS]
        return min(truths[hash] for hash in (*likely, self._default))

    @property
    def claimed(self) -> float:
        """The seconds that the search expects of its nominee, on a still core."""
        beliefs, default = self.task.ranking.beliefs, truths_of(self.item.name)[self._default]
        return default * (math.exp(beliefs.expected.mean) if beliefs else 1.0)

    @property
    def true(self) -> float:
        """The seconds that its nominee takes on a still core."""
        beliefs = self.task.ranking.beliefs
        return truths_of(self.item.name)[beliefs.nominee if beliefs else self._default]

    @property
    def _default(self) -> str:
        return self.task.default.hash
