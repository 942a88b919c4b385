"""Trainer: teaches the cost model what was measured, while more is being measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tunefarm.tuner.model.cost_model import CostModel, TrainingData

GROWTH = 0.2  # retrain when so many more measurements are known than the last time
FIRST = 8  # or, at the beginning, so many


class Trainer:
    """Decides when to retrain, and does so in a thread of its own.

    The model answers as it was until a training is over. In the foreground the model learns at
    once: slower on a farm, but the same answers in the same order give the same proposals.
    """

    def __init__(self, model: CostModel, *, background: bool) -> None:
        self.seconds = 0.0  # of processor time
        self._model = model
        self._pool = ThreadPoolExecutor(1, "trainer") if background else None
        self._running: Future[float] | None = None
        self._known = 0  # measurements at the last training

    def offer(self, known: int, collect: Callable[[], TrainingData]) -> None:
        """Retrain if the job's `known` measurements are enough more than last time, unless busy.

        Raises what a training that has ended has raised.
        """
        if self._running is not None:
            if not self._running.done():
                return
            self.seconds += self._running.result()
            self._running = None
        if known - self._known < max(min(FIRST, known), GROWTH * self._known, 1):
            return
        self.teach(known, collect)

    def teach(self, known: int, collect: Callable[[], TrainingData]) -> None:
        """Retrain now."""
        self._known = known
        begin = time.thread_time()
        data = collect()
        self.seconds += time.thread_time() - begin
        if self._pool is None:
            self.seconds += self._train(data)
        else:
            self._running = self._pool.submit(self._train, data)

    def close(self) -> None:
        """Wait for a training that is under way."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _train(self, data: TrainingData) -> float:
        begin = time.thread_time()
        self._model.fit(data)
        return time.thread_time() - begin
