"""Cost models learn which candidates are fast."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.tuner.synthetic import TARGET, latency, matmul_kernel, tile_space
from tuner.cost_model import (
    FAILURE_MARGIN,
    LOWEST_LABEL,
    BoostedTrees,
    CostModel,
    RandomModel,
    throughput_labels,
)
from tuner.features import FeatureMatrix, features


def measured(
    count: int, seed: int
) -> tuple[FeatureMatrix, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    space, rng = tile_space(), random.Random(seed)
    candidates = [space.sample(rng) for _ in range(count)]
    latencies = np.array([latency(space, candidate) for candidate in candidates])
    return features(space, matmul_kernel(), TARGET, candidates), latencies


def one_task(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.zeros(count, np.int64)


def test_labels_are_relative_to_the_best_of_the_same_task() -> None:
    latencies = np.array([2e-3, 1e-3, 8.0, 4.0])
    tasks = np.array([0, 0, 1, 1])
    assert throughput_labels(latencies, tasks).tolist() == [-1, 0, -1, 0]


def test_failures_are_a_little_worse_than_the_slowest_success() -> None:
    labels = throughput_labels(np.array([1.0, np.inf, 4.0]), one_task(3))
    assert labels.tolist() == [0, -2 - FAILURE_MARGIN, -2]


def test_labels_are_bounded_for_outliers_and_tasks_without_success() -> None:
    labels = throughput_labels(np.array([1.0, 1e6, np.inf]), np.array([0, 0, 1]))
    assert labels.tolist() == [0, LOWEST_LABEL, LOWEST_LABEL]


def test_boosted_trees_rank_unseen_candidates() -> None:
    model = BoostedTrees(seed=1)
    rows, latencies = measured(300, seed=1)
    model.fit(rows, latencies, one_task(300))
    unseen, truth = measured(300, seed=2)
    scores = model.predict(unseen)
    ranks = np.argsort(np.argsort(-scores)), np.argsort(np.argsort(truth))
    assert np.corrcoef(*ranks)[0, 1] > 0.85


def test_equal_data_gives_equal_models() -> None:
    rows, latencies = measured(100, seed=3)
    scores = []
    for _ in range(2):
        model = BoostedTrees(seed=5)
        model.fit(rows, latencies, one_task(100))
        scores.append(model.predict(rows))
    np.testing.assert_array_equal(scores[0], scores[1])


def test_too_few_successes_leave_the_model_random() -> None:
    model = BoostedTrees(seed=1, min_samples=8)
    rows, latencies = measured(20, seed=4)
    latencies[7:] = np.inf
    model.fit(rows, latencies, one_task(20))
    assert not model.trained
    assert len(set(model.predict(rows).tolist())) > 10


def test_a_model_is_untrained_again_when_refitted_on_failures_alone() -> None:
    model = BoostedTrees(seed=1)
    rows, latencies = measured(50, seed=5)
    model.fit(rows, latencies, one_task(50))
    assert model.trained
    model.fit(rows, np.full(50, np.inf), one_task(50))
    assert not model.trained


@pytest.mark.parametrize("model", [RandomModel(7), BoostedTrees(7)])
def test_a_score_per_row(model: CostModel) -> None:
    rows, _ = measured(9, seed=6)
    assert model.predict(rows).shape == (9,)
