"""Cost models learn which candidates are fast."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.tuner.synthetic import TARGET, features, latency, matmul_kernel, tile_space
from tunefarm.configs.settings import CostModelSettings
from tunefarm.tuner.model.cost_model import (
    LOWEST_LABEL,
    BoostedTrees,
    CostModel,
    Outcome,
    TrainingData,
    UntrainedModel,
    throughput_labels,
)
from tunefarm.tuner.model.features import FeatureMatrix

NAN = float("nan")


def data(
    rows: FeatureMatrix | None,
    latencies: list[float] | npt.NDArray[np.float64],
    *,
    outcomes: list[Outcome] | None = None,
    deviations: list[float] | None = None,
    yardsticks: list[float] | None = None,
    tasks: list[int] | None = None,
) -> TrainingData:
    """Rows of one task unless told otherwise; infinity is a failure."""
    seconds = np.array(latencies, np.float64)
    count = len(seconds)
    usual = [Outcome.MEASURED if np.isfinite(s) else Outcome.FAILED for s in seconds]
    return TrainingData(
        np.zeros((count, 1), np.float32) if rows is None else rows,
        seconds,
        np.array(usual if outcomes is None else outcomes, np.int8),
        np.array(deviations or [0.01] * count, np.float64),
        np.array(yardsticks or [NAN] * count, np.float64),
        np.array(tasks or [0] * count, np.int64),
    )


def measured(count: int, seed: int) -> TrainingData:
    space, rng = tile_space(), random.Random(seed)
    candidates = [space.sample(rng) for _ in range(count)]
    latencies = [latency(space, candidate) for candidate in candidates]
    return data(features(space, matmul_kernel(), TARGET, candidates), latencies)


def rank_correlation(scores: npt.NDArray[np.float32], truth: npt.NDArray[np.float64]) -> float:
    ranks = np.argsort(np.argsort(-scores)), np.argsort(np.argsort(truth))
    return float(np.corrcoef(*ranks)[0, 1])


def test_labels_are_relative_to_the_best_of_the_same_task() -> None:
    labels = throughput_labels(data(None, [2e-3, 1e-3, 8.0, 4.0], tasks=[0, 0, 1, 1]))
    assert labels.tolist() == [-1, 0, -1, 0]


def test_failures_have_no_label() -> None:
    labels = throughput_labels(data(None, [1.0, np.inf, 4.0]))
    assert labels.tolist()[::2] == [0, -2]
    assert np.isnan(labels[1])


def test_labels_are_bounded_for_outliers() -> None:
    assert throughput_labels(data(None, [1.0, 1e6])).tolist() == [0, LOWEST_LABEL]


def test_a_task_without_success_has_no_labels() -> None:
    assert np.isnan(throughput_labels(data(None, [1.0, np.inf], tasks=[0, 1]))[1])


def test_a_bound_is_not_the_best_of_its_task() -> None:
    outcomes = [Outcome.ABOVE, Outcome.MEASURED]
    assert throughput_labels(data(None, [1.0, 2.0], outcomes=outcomes)).tolist() == [1, 0]


def test_labels_leave_out_what_the_whole_machine_lost() -> None:
    """The second candidate was measured while the machine ran at half its speed."""
    slow = throughput_labels(data(None, [1.0, 2.0, 4.0], yardsticks=[1e-3, 2e-3, 1e-3]))
    assert slow.tolist() == [0, 0, -2]
    partly = throughput_labels(data(None, [1.0, 2.0, 4.0], yardsticks=[1e-3, NAN, 1e-3]))
    assert partly.tolist() == [0, -1, -2]


def test_the_best_is_not_the_luckiest() -> None:
    """0.9 s may be anything up to 1.2 s; 1 s is what it is."""
    labels = throughput_labels(data(None, [0.9, 1.0, 2.0], deviations=[0.3, 0.01, 0.01]))
    assert labels[1:].tolist() == [0, -1]
    assert labels[0] > 0


def test_sure_measurements_count_more() -> None:
    """One candidate, measured well a few times and badly many times."""
    rows = np.repeat(np.array([[0.0], [1.0]], np.float32), 40, axis=0)
    seconds = [1.0] * 40 + [2.0] * 8 + [4.0] * 32
    sure = [0.01] * 40 + [0.01] * 8 + [0.5] * 32
    model = BoostedTrees(0, CostModelSettings(rounds=200))
    scores = []
    for deviations in (sure, [0.01] * 80):
        model.fit(data(rows, seconds, deviations=deviations))
        slow, fast = model.predict(rows[::79]).mean[::-1]
        scores.append(slow - fast)
    assert scores[0] == pytest.approx(-1.0, abs=0.1)  # 2 s against 1 s
    assert scores[1] == pytest.approx(-1.8, abs=0.1)


def test_a_bound_counts_as_much_as_it_is_sure() -> None:
    """The same, with a bound among the rows: another objective, the same weights."""
    rows = np.repeat(np.array([[0.0], [1.0], [2.0]], np.float32), [40, 40, 1], axis=0)
    seconds = [1.0] * 40 + [2.0] * 8 + [4.0] * 32 + [1.5]
    outcomes = [Outcome.MEASURED] * 80 + [Outcome.ABOVE]
    sure = [0.01] * 48 + [0.5] * 33
    model = BoostedTrees(0, CostModelSettings(rounds=200))
    model.fit(data(rows, seconds, outcomes=outcomes, deviations=sure))
    fast, slow = model.predict(rows[[0, 40]]).mean
    assert slow - fast == pytest.approx(-1.0, abs=0.1)


def test_boosted_trees_rank_unseen_candidates() -> None:
    model = BoostedTrees(1)
    model.fit(measured(300, seed=1))
    unseen = measured(300, seed=2)
    kept = np.isfinite(unseen.latencies)
    scores = model.predict(unseen.features).mean
    assert rank_correlation(scores[kept], unseen.latencies[kept]) > 0.8


def test_one_model_ranks_the_candidates_of_several_tasks() -> None:
    first = measured(200, seed=1)
    second = measured(200, seed=3)
    slower = replace(second, latencies=50 * second.latencies, tasks=second.tasks + 1)
    model = BoostedTrees(seed=1)
    model.fit(TrainingData.joined([first, slower]))
    unseen = measured(200, seed=4)
    kept = np.isfinite(unseen.latencies)
    scores = model.predict(unseen.features).mean
    assert rank_correlation(scores[kept], unseen.latencies[kept]) > 0.8


def test_what_fails_is_avoided() -> None:
    """The synthetic task fails for large tiles; latencies alone would never tell."""
    model = BoostedTrees(seed=1)
    model.fit(measured(400, seed=1))
    unseen = measured(400, seed=2)
    scores, failed = model.predict(unseen.features).mean, np.isinf(unseen.latencies)
    assert failed.any()
    assert np.median(scores[failed]) < np.quantile(scores[~failed], 0.1)


def test_a_bound_says_that_a_candidate_is_not_fast_and_no_more() -> None:
    """x = 1 was ended at a fifth of its time; x = 0 was measured."""
    rows = np.repeat(np.array([[0.0], [1.0], [2.0]], np.float32), 20, axis=0)
    latencies = [1.0] * 20 + [4.0] * 20 + [8.0] * 20
    outcomes = [Outcome.MEASURED] * 20 + [Outcome.ABOVE] * 20 + [Outcome.MEASURED] * 20
    model = BoostedTrees(0, CostModelSettings(rounds=200))
    model.fit(data(rows, latencies, outcomes=outcomes))
    scores = model.predict(rows[::20]).mean
    assert scores[1] - scores[0] < -1.9  # the bound is log2(1 / 4) = -2
    assert scores[2] - scores[0] == pytest.approx(-3.0, abs=0.1)


def test_the_spread_is_larger_where_nothing_was_measured() -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 1, (200, 4)).astype(np.float32)
    model = BoostedTrees(0, CostModelSettings(members=5))
    model.fit(data(rows, np.exp2(rows.sum(axis=1) + rng.normal(0, 0.3, 200))))
    scores = model.predict(rows)
    assert (scores.spread > 0).all()
    alone = BoostedTrees(0, CostModelSettings(members=1))
    alone.fit(data(rows, np.exp2(rows.sum(axis=1))))
    assert (alone.predict(rows).spread == 0).all()


def test_equal_data_gives_equal_models() -> None:
    scores = []
    for _ in range(2):
        model = BoostedTrees(seed=5)
        model.fit(measured(100, seed=3))
        scores.append(model.predict(measured(100, seed=3).features))
    np.testing.assert_array_equal(scores[0].mean, scores[1].mean)
    np.testing.assert_array_equal(scores[0].spread, scores[1].spread)


def test_too_few_successes_leave_the_model_random() -> None:
    model = BoostedTrees(1, CostModelSettings(min_records=8))
    few = measured(20, seed=4)
    few.latencies[7:] = np.inf
    few.outcomes[7:] = Outcome.FAILED
    model.fit(few)
    assert not model.trained
    assert len(set(model.predict(few.features).mean.tolist())) > 10


def test_a_model_is_untrained_again_when_refitted_on_failures_alone() -> None:
    model = BoostedTrees(seed=1)
    rows = measured(50, seed=5)
    model.fit(rows)
    assert model.trained
    model.fit(data(rows.features, [np.inf] * 50))
    assert not model.trained


@pytest.mark.parametrize("model", [UntrainedModel(7), BoostedTrees(7)])
def test_a_score_per_row(model: CostModel) -> None:
    scores = model.predict(measured(9, seed=6).features)
    assert scores.mean.shape == scores.spread.shape == (9,)
