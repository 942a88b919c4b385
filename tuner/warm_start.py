"""Warm start: a schedule for a kernel that was never measured, from the records of others.

A cost model learns from everything that the database knows of the target. The default schedule, the
best ones of the nearest relatives and what an evolutionary search over the space finds compete; the
one of which the model is surest to be fast is taken, and the default unless it is clearly beaten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.kernels.kernel import FusedKernel
from compiler.schedule import Schedule, schedule_space
from compiler.target import Target
from db.records import TaskKey
from tuner.cost_model import BoostedTrees, Labels, TrainingData
from tuner.features import FeatureExtractor, FeatureLayout
from tuner.history import PastKernel, background, bests
from tuner.packed import Rows
from tuner.relatives import is_related, nearest_bests

MIN_ROWS = 64  # measurements in the database, or there is nothing to predict from
MARGIN = 0.05  # log2 of the speed-up that is predicted at least where the default is given up
GENERATIONS = 6
POPULATION = 256


class WarmStart:
    """Predicts schedules; reads the history and learns at the first question."""

    def __init__(
        self, read: Callable[[], Sequence[PastKernel]], target: Target, key: TaskKey
    ) -> None:
        """`key` says for which threads and numerics; its workload does not matter."""
        self._read = read
        self._target, self._key = target, key
        self._past: Sequence[PastKernel] | None = None
        self._model = BoostedTrees(0)
        self._layout = FeatureLayout.of([])

    def predict(self, kernel: FusedKernel) -> Schedule | None:
        """The schedule to use instead of the default one; None if that is to be kept.

        Without relatives in the database (kernels with the same kind of anchor) nothing is
        predicted: a model of convolutions knows little of softmax.
        """
        past = self._learn()
        if not self._model.trained or not any(is_related(kernel, p.kernel) for p in past):
            return None
        threads, numerics = self._key.threads, self._key.numerics
        space = schedule_space(kernel, self._target, threads, numerics)
        extract = FeatureExtractor(space, kernel, self._target, self._layout, threads)
        packed, rng = extract.packed, np.random.default_rng(0)
        seeds = [space.default(), *nearest_bests(kernel, space, bests(past), count=8)]
        rows = packed.pack(seeds)
        rows = np.concatenate([rows, packed.sample(POPULATION, rng)])
        for _ in range(GENERATIONS):
            order = np.argsort(-self._scores(extract, rows), kind="stable")
            elite = rows[order[: POPULATION // 4]]
            children = packed.mutate(elite[rng.integers(len(elite), size=POPULATION)], rng)
            rows = np.concatenate([rows[: len(seeds)], elite, children])
        scores = self._scores(extract, rows)
        best = int(np.argmax(scores))
        if scores[best] < scores[0] + MARGIN:
            return None
        return space.schedule(packed.unpack(rows[best]))

    def _scores(self, extract: FeatureExtractor, rows: Rows) -> Labels:
        """What the model is fairly sure of: the mean less the spread."""
        scores = self._model.predict(extract.of_rows(rows))
        return scores.mean - scores.spread

    def _learn(self) -> Sequence[PastKernel]:
        if self._past is None:
            self._past = self._read()
            if sum(len(item.lessons) for item in self._past) >= MIN_ROWS:
                self._layout = FeatureLayout.of([item.space for item in self._past])
                parts = background(self._past, self._layout, self._key)
                self._model.fit(TrainingData.joined(parts))
        return self._past
