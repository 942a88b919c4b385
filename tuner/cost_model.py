"""Cost models: they rank candidates by features, learning from what was measured.

Labels are log2 of throughput relative to the best of the same task: 0 for the best candidate, -1
for one that takes twice as long. So tasks of a microsecond and of a second weigh the same, and a
model is asked for what the search needs: which candidates of a task are the fast ones.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import xgboost

from tuner.features import FeatureMatrix

Labels = npt.NDArray[np.float32]

LOWEST_LABEL = -6.0  # 64 times slower than the best: how much slower still does not matter
FAILURE_MARGIN = 1.0  # a failure lies this much under the slowest success of its task


class CostModel(Protocol):
    """Scores candidates; only the order of scores within a task has a meaning."""

    @property
    def trained(self) -> bool:
        """Whether scores come from measurements (otherwise they are random)."""
        ...

    def fit(
        self,
        features: FeatureMatrix,
        latencies: npt.NDArray[np.float64],
        tasks: npt.NDArray[np.int64],
    ) -> None:
        """Learn from all measurements so far, replacing what was learnt before.

        `features` has shape [n, width]; `latencies` [n] are seconds, infinity for a failure;
        `tasks` [n] says which rows belong to one task.
        """
        ...

    def predict(self, features: FeatureMatrix) -> Labels:
        """One score per row; higher is faster."""
        ...


def throughput_labels(latencies: npt.NDArray[np.float64], tasks: npt.NDArray[np.int64]) -> Labels:
    """log2(best latency of the task / latency), at least `LOWEST_LABEL`.

    A failure gets the lowest label of its task's successes less `FAILURE_MARGIN`.
    """
    labels = np.full(len(latencies), LOWEST_LABEL, np.float32)
    for task in np.unique(tasks):
        rows = tasks == task
        succeeded = rows & np.isfinite(latencies)
        if not succeeded.any():
            continue
        relative = np.log2(latencies[succeeded].min() / latencies[succeeded])
        labels[succeeded] = np.maximum(relative, LOWEST_LABEL)
        labels[rows & ~succeeded] = labels[succeeded].min() - FAILURE_MARGIN
    return labels


class RandomModel:
    """Scores at random: a search without a model."""

    trained = False

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def fit(
        self,
        features: FeatureMatrix,
        latencies: npt.NDArray[np.float64],
        tasks: npt.NDArray[np.int64],
    ) -> None:
        """Nothing is learnt."""

    def predict(self, features: FeatureMatrix) -> Labels:
        """Uniform in [0, 1)."""
        return self._rng.random(len(features), dtype=np.float32)


class BoostedTrees:
    """Gradient-boosted trees (XGBoost) with squared error on log-throughput.

    One thread and a fixed seed: the same measurements give the same model. Until `min_samples`
    successes are known the scores are random.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        rounds: int = 64,
        max_depth: int = 6,
        learning_rate: float = 0.2,
        min_samples: int = 8,
    ) -> None:
        self._seed = seed
        self._rounds = rounds
        self._max_depth = max_depth
        self._learning_rate = learning_rate
        self._min_samples = min_samples
        self._fallback = RandomModel(seed)
        self._booster: xgboost.Booster | None = None

    @property
    def trained(self) -> bool:
        return self._booster is not None

    def fit(
        self,
        features: FeatureMatrix,
        latencies: npt.NDArray[np.float64],
        tasks: npt.NDArray[np.int64],
    ) -> None:
        """See `CostModel.fit`."""
        if np.isfinite(latencies).sum() < self._min_samples:
            self._booster = None
            return
        labels = throughput_labels(latencies, tasks)
        parameters = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_depth": self._max_depth,
            "eta": self._learning_rate,
            "min_child_weight": 1.0,
            "subsample": 0.9,
            "colsample_bytree": 0.8,
            "base_score": float(labels.mean()),
            "nthread": 1,
            "seed": self._seed,
            "verbosity": 0,
        }
        data = xgboost.DMatrix(features, label=labels, nthread=1)
        self._booster = xgboost.train(parameters, data, num_boost_round=self._rounds)

    def predict(self, features: FeatureMatrix) -> Labels:
        """See `CostModel.predict`."""
        if self._booster is None:
            return self._fallback.predict(features)
        return np.asarray(self._booster.inplace_predict(features), dtype=np.float32)
