"""Cost models: they rank candidates by features, learning from what was measured.

Labels are log2 of throughput relative to the best of the same task: 0 for the best candidate, -1
for one that takes twice as long. So tasks of a microsecond and of a second weigh the same, and a
model is asked for what the search needs: which candidates of a task are the fast ones.

All start from the score among the features (`features.SCORE`): the analytic estimate, corrected by
the pretrained model. It ranks when nothing was measured yet, and what is learnt are the differences
from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import xgboost

from tunefarm.configs.settings import CostModelSettings
from tunefarm.tuner.model.features import FEATURES, SCORE, FeatureMatrix

Labels = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float32]
Gradients: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
_Loss: TypeAlias = Callable[[npt.NDArray[np.float32], xgboost.DMatrix], Gradients]

LOWEST_LABEL = -6.0  # 64 times slower than the best: how much slower still does not matter
NOISE = 0.01
UNCERTAIN = 1.0  # spread of the expected score: it may be wrong by a factor of two
MODEL_NOISE = 0.05  # of a log time: what the features cannot tell, however well it is measured
YARDSTICK_NOISE = 0.1  # of the yardstick's time, that says nothing about the machine's speed
MIN_FAILURES = 4  # fewer say nothing about where failures are to be expected
FAILURE_COST = 4.0  # what a certain failure takes off the score: as if 16 times slower


class Outcome(IntEnum):
    """What the latency of a measurement means."""

    MEASURED = 0  # it is the candidate's
    ABOVE = 1  # the candidate's is higher: the measurement was ended there (a time limit)
    FAILED = 2  # nothing: the candidate does not work


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Everything measured: n rows.

    `latencies` are in seconds (infinity for a failure), `deviations` the standard errors of their
    natural logarithms, `yardsticks` the seconds of the yardstick next to each measurement (NaN if
    unknown, or if there is no need of it), `tasks` says which rows belong to one task.
    """

    features: FeatureMatrix  # [n, width]
    latencies: npt.NDArray[np.float64]  # [n]
    outcomes: npt.NDArray[np.int8]  # [n] values of Outcome
    deviations: npt.NDArray[np.float64]  # [n]
    yardsticks: npt.NDArray[np.float64]  # [n]
    tasks: npt.NDArray[np.int64]  # [n]

    def __len__(self) -> int:
        return len(self.latencies)

    @staticmethod
    def joined(parts: Sequence[TrainingData]) -> TrainingData:
        """The rows of all parts; the parts' task numbers must differ."""
        columns = ([getattr(part, field.name) for part in parts] for field in fields(TrainingData))
        return TrainingData(*map(np.concatenate, columns))


class Scores(NamedTuple):
    """Predictions for n candidates; higher is faster, in the unit of labels.

    `spread` is the standard deviation over the members of an ensemble: how sure the model is.
    """

    mean: Labels
    spread: Labels


class CostModel(Protocol):
    """Scores candidates; only differences of scores within a task have a meaning."""

    @property
    def trained(self) -> bool:
        """Whether scores come from measurements (otherwise from the expected score alone)."""

    def fit(self, data: TrainingData) -> None:
        """Learn from all measurements so far, replacing what was learnt before."""

    def predict(self, features: FeatureMatrix) -> Scores:
        """One score per row."""


def throughput_labels(data: TrainingData) -> Labels:
    """log2(best latency of the task / latency), at least `LOWEST_LABEL`; NaN for failures.

    Latencies with a yardstick are first brought to the task's usual speed of the machine: each is
    divided by how much longer than the task's median the yardstick took next to it. The best is the
    one that is surely fast, with one deviation added: not the luckiest.
    """
    labels = np.full(len(data), np.nan, np.float32)
    for task in np.unique(data.tasks):
        rows = np.flatnonzero((data.tasks == task) & np.isfinite(data.latencies))
        measured = data.outcomes[rows] == Outcome.MEASURED
        if not measured.any():
            continue
        seconds = data.latencies[rows] / _drift(data.yardsticks[rows])
        surely = np.log(seconds) + data.deviations[rows]
        best = seconds[np.where(measured, surely, np.inf).argmin()]
        labels[rows] = np.maximum(np.log2(best / seconds), LOWEST_LABEL)
    labels[data.outcomes == Outcome.FAILED] = np.nan
    return labels


def _drift(yardsticks: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How much slower than usual the machine was next to each measurement; 1 where unknown.

    Small differences are the yardstick's own noise, and dividing by them would only add it.
    """
    known = np.isfinite(yardsticks) & (yardsticks > 0)
    if not known.any():
        return np.ones(len(yardsticks))
    usual = float(np.median(yardsticks[known]))
    drift = np.where(known, yardsticks, usual) / usual
    return np.where(np.abs(drift - 1.0) > YARDSTICK_NOISE, drift, 1.0)


def row_weights(data: TrainingData) -> Weights:
    """How much each row counts: the inverse of its variance, noise of the model included; mean 1.

    Shape [n]; n must not be 0.
    """
    weights = 1.0 / (MODEL_NOISE**2 + np.square(data.deviations))
    return np.asarray(weights / weights.mean(), np.float32)


def expected_scores(features: FeatureMatrix) -> Labels:
    """What is expected of each row before anything is measured: log2 of throughput, shape [n].

    0 for matrices of other columns.
    """
    if features.shape[1] != len(FEATURES):
        return np.zeros(len(features), np.float32)
    return np.asarray(features[:, SCORE], np.float32)


class UntrainedModel:
    """Scores by what is expected, with a little noise to tell equals apart."""

    trained = False

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def fit(self, data: TrainingData) -> None:
        """Nothing is learnt."""

    def predict(self, features: FeatureMatrix) -> Scores:
        """See `CostModel.predict`."""
        noise = NOISE * self._rng.random(len(features), dtype=np.float32)
        scores = expected_scores(features) + noise
        return Scores(scores, np.full_like(scores, UNCERTAIN))


class BoostedTrees:
    """An ensemble of gradient-boosted trees (XGBoost).

    They learn the squared error of log-throughput, weighted by how sure each measurement is.
    (Objectives that rank the candidates of each task had rank correlations of 0.78 and 0.67, this
    one 0.81.) A measurement that was ended at a time limit is a bound: it costs something only if
    the prediction lies above it. Failures are no latencies: a classifier of their own learns where
    they are, and takes off the score what failing probably costs.

    One thread and fixed seeds: the same measurements give the same model. Until `min_records`
    successes are known the scores are those of `UntrainedModel`.
    """

    def __init__(self, seed: int = 0, settings: CostModelSettings | None = None) -> None:
        self._seed = seed
        self._settings = settings or CostModelSettings()
        self._parameters = {
            "tree_method": "hist",
            "max_bin": 64,
            "max_depth": self._settings.max_depth,
            "eta": self._settings.learning_rate,
            "min_child_weight": 1.0,
            "subsample": 0.8,
            "colsample_bytree": 0.6,
            "nthread": 1,
            "verbosity": 0,
        }
        self._fallback = UntrainedModel(seed)
        self._boosters: list[xgboost.Booster] = []
        self._failing: xgboost.Booster | None = None

    @property
    def trained(self) -> bool:
        """Whether there is a model to predict with."""
        return bool(self._boosters)

    def fit(self, data: TrainingData) -> None:
        """See `CostModel.fit`."""
        labels = throughput_labels(data)
        known = np.isfinite(labels)
        if (known & (data.outcomes == Outcome.MEASURED)).sum() < self._settings.min_records:
            self._boosters, self._failing = [], None
            return
        boosters = self._fit_regression(data, labels, known)
        # Another thread may be predicting: what it sees is the old model or the new one.
        self._boosters, self._failing = boosters, self._fit_failures(data)

    def predict(self, features: FeatureMatrix) -> Scores:
        """See `CostModel.predict`."""
        boosters, failing = self._boosters, self._failing
        if not boosters:
            return self._fallback.predict(features)
        each = np.stack([booster.inplace_predict(features) for booster in boosters])
        mean, spread = each.mean(axis=0) + expected_scores(features), each.std(axis=0)
        if failing is not None:
            mean = mean - FAILURE_COST * failing.inplace_predict(features)
        return Scores(mean.astype(np.float32), spread.astype(np.float32))

    def _fit_regression(
        self, data: TrainingData, labels: Labels, known: npt.NDArray[np.bool_]
    ) -> list[xgboost.Booster]:
        rows = np.flatnonzero(known)
        weights = row_weights(data)[rows]
        residuals = labels[rows] - expected_labels(data, labels, rows)
        matrix = _matrix(data.features[rows], residuals, weight=weights)
        bounds = data.outcomes[rows] == Outcome.ABOVE
        if bounds.any():
            return self._ensemble(matrix, {"base_score": 0.0}, _one_sided(bounds, weights))
        return self._ensemble(matrix, {"base_score": 0.0, "objective": "reg:squarederror"})

    def _ensemble(
        self,
        matrix: xgboost.QuantileDMatrix,
        parameters: dict[str, Any],
        objective: _Loss | None = None,
    ) -> list[xgboost.Booster]:
        """Members that differ in their seeds."""
        return [
            xgboost.train(
                self._parameters | parameters | {"seed": self._seed + member},
                matrix,
                num_boost_round=self._settings.rounds,
                obj=objective,
            )
            for member in range(self._settings.members)
        ]

    def _fit_failures(self, data: TrainingData) -> xgboost.Booster | None:
        """A model of the probability to fail, where enough has failed."""
        failed = data.outcomes == Outcome.FAILED
        if failed.sum() < MIN_FAILURES:
            return None
        parameters = self._parameters | {"objective": "binary:logistic", "seed": self._seed}
        matrix = _matrix(data.features, failed.astype(np.float32))
        return xgboost.train(parameters, matrix, num_boost_round=self._settings.rounds // 2)


def _matrix(features: FeatureMatrix, labels: npt.ArrayLike, **more: Any) -> xgboost.QuantileDMatrix:
    return xgboost.QuantileDMatrix(features, label=labels, nthread=1, max_bin=64, **more)


def expected_labels(data: TrainingData, labels: Labels, rows: npt.NDArray[np.int64]) -> Labels:
    """What was expected of these rows: shifted, task by task, to their labels."""
    scores = expected_scores(data.features[rows])
    for task in np.unique(data.tasks[rows]):
        here = data.tasks[rows] == task
        scores[here] += np.median(labels[rows][here] - scores[here])
    return scores


def _one_sided(bounds: npt.NDArray[np.bool_], weights: Weights) -> _Loss:
    """Squared error, but for rows that are bounds only where the prediction is above the label."""

    def objective(predictions: npt.NDArray[np.float32], matrix: xgboost.DMatrix) -> Gradients:
        gradient = predictions - matrix.get_label()
        inactive = bounds & (gradient < 0)
        gradient = np.where(inactive, 0.0, gradient)
        return weights * gradient, weights * np.where(inactive, np.float32(1e-3), np.float32(1.0))

    return objective
