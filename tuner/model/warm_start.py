"""Warm start: a schedule for a kernel that was never measured, from the records of others.

What competes has proved itself: the default schedule, and the best schedules of relatives that beat
their own default clearly. A cost model that has learnt from everything that the database knows of
the target picks among them, by what it is fairly sure of. (Letting it search the whole space loses:
a model of other kernels is wrong in places that none of them has been to.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.db.records import TaskKey
from tunefarm.tuner.model.cost_model import BoostedTrees, TrainingData
from tunefarm.tuner.model.features import FeatureExtractor, FeatureLayout
from tunefarm.tuner.model.history import PastKernel, background
from tunefarm.tuner.model.relatives import nearest_bests

MIN_ROWS = 64  # measurements in the database, or there is nothing to predict from
MIN_GAIN = 1.05  # times that a relative's best is faster than its default, to be carried over
RELATIVES = 8  # the nearest, whose best schedules compete


class WarmStart:
    """Predicts schedules; reads the history and learns at the first question."""

    def __init__(
        self, read: Callable[[], Sequence[PastKernel]], target: Target, key: TaskKey
    ) -> None:
        """`key` says for which threads and precision; its workload does not matter."""
        self._read = read
        self._target, self._key = target, key
        self._past: Sequence[PastKernel] | None = None
        self._model = BoostedTrees(0)
        self._layout = FeatureLayout.of([])

    def predict(self, kernel: FusedKernel) -> tuple[Schedule, int | None] | None:
        """The schedule to use instead of the default one, and the number of the relative's record.

        None if the default one is to be kept.

        Without relatives in the database (kernels with the same kind of anchor) nothing is
        predicted: a model of convolutions knows little of softmax.
        """
        past = self._learn()
        if not self._model.trained:
            return None
        threads, numerics = self._key.threads, self._key.numerics
        space = schedule_space(kernel, self._target, threads, numerics)
        proven = [best for item in past if item.gain >= MIN_GAIN and (best := item.best)]
        carried = nearest_bests(kernel, space, proven, RELATIVES)
        if not carried:
            return None
        extract = FeatureExtractor(space, kernel, self._target, self._layout, threads)
        candidates = [space.default(), *carried]
        scores = self._model.predict(extract(candidates))
        surest = int(np.argmax(scores.mean - scores.spread))
        if surest == 0:
            return None
        chosen = candidates[surest]
        return space.schedule(chosen), carried[chosen].record

    def _learn(self) -> Sequence[PastKernel]:
        if self._past is None:
            self._past = self._read()
            if sum(len(item.trials) for item in self._past) >= MIN_ROWS:
                self._layout = FeatureLayout.of([item.space for item in self._past])
                parts = background(self._past, self._layout, self._key)
                self._model.fit(TrainingData.joined(parts))
        return self._past
