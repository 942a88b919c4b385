"""What is believed of a task's candidates, from the few that were measured."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tuner.synthetic import TARGET, latency, matmul_kernel, small_space, tile_space
from tunefarm.tuner.model.cost_model import expected_scores
from tunefarm.tuner.model.features import FeatureExtractor
from tunefarm.tuner.model.packed_space import PackedSpace, Rows
from tunefarm.tuner.model.space_process import SpaceProcess, Values, expected_improvement, product
from tunefarm.tuner.search.strategies.evolution import FASTEST, LAST

PACKED = PackedSpace(tile_space())
EXTRACT = FeatureExtractor(PACKED.space, matmul_kernel(), TARGET)


def process() -> SpaceProcess:
    return SpaceProcess(PACKED, EXTRACT.of_rows)


def drawn(count: int, seed: int) -> tuple[Rows, Values]:
    """Rows of candidates, and their seconds."""
    rows = PACKED.sample(count, np.random.default_rng(seed))
    seconds = [latency(PACKED.space, PACKED.unpack(row)) for row in rows]
    return rows, np.array(seconds)


def test_before_anything_is_measured_the_estimate_is_believed() -> None:
    rows, _ = drawn(20, 0)
    outlook = process().outlook(rows)
    np.testing.assert_allclose(outlook.mean, expected_scores(EXTRACT.of_rows(rows)), atol=1e-6)
    assert (outlook.deviation == outlook.deviation[0]).all()


def test_what_was_measured_is_known_and_what_is_like_it_nearly_so() -> None:
    rows, seconds = drawn(40, 1)
    works = np.isfinite(seconds)
    believed = process()
    believed.tell(rows[works], seconds[works])
    outlook = believed.outlook(rows[works])
    labels = np.maximum(-np.log2(seconds[works] / seconds.min()), -3.0)
    assert np.abs(outlook.mean + np.log2(seconds.min()) - labels).max() < 0.4
    near = believed.outlook(PACKED.neighbours(rows[works][0]))
    far = believed.outlook(drawn(400, 2)[0])
    assert outlook.deviation.max() < np.median(near.deviation) < np.median(far.deviation)


def test_a_few_dozen_measurements_rank_the_rest() -> None:
    rows, seconds = drawn(64, 3)
    believed = process()
    believed.tell(rows, seconds)
    others, truth = drawn(300, 4)
    works = np.isfinite(truth)
    mean = believed.outlook(others).mean
    ranks = [np.argsort(np.argsort(values)) for values in (mean[works], -truth[works])]
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.7
    assert np.median(mean[~works]) < np.quantile(mean[works], 0.25)  # failures are near failures


def test_failures_alone_say_where_not_to_go() -> None:
    rows, _ = drawn(1, 5)
    believed = process()
    believed.tell(rows, np.array([np.inf]))
    everywhere = np.concatenate([rows, drawn(100, 6)[0]])
    lost = believed.outlook(everywhere).mean - process().outlook(everywhere).mean
    assert lost[0] < 1.5 * np.median(lost[1:]) < 0


def test_supposing_a_candidate_measured_leaves_less_to_learn_of_those_like_it() -> None:
    rows = PACKED.neighbours(PACKED.rows(np.array([4711]))[0])
    rows = np.concatenate([PACKED.rows(np.array([4711])), rows, drawn(50, 7)[0]])
    outlook = process().outlook(rows)
    before, mean = outlook.deviation, outlook.mean.copy()
    outlook.suppose(0)
    less = before - outlook.deviation
    assert (outlook.mean == mean).all()
    assert less[0] == less.max() > 0.5 * before[0]
    assert np.median(less[1:-50]) > 2 * np.median(less[-50:])


def test_the_joint_covariance_has_the_deviations() -> None:
    rows, seconds = drawn(30, 8)
    believed = process()
    believed.tell(rows[:20], seconds[:20])
    outlook = believed.outlook(rows)
    joint = outlook.joint(np.arange(5, 30))
    np.testing.assert_allclose(np.sqrt(np.diag(joint)), outlook.deviation[5:], rtol=1e-4)
    np.testing.assert_allclose(outlook.of(np.arange(5, 30)).deviation, outlook.deviation[5:])


def test_without_features_choices_say_all() -> None:
    packed = PackedSpace(small_space(9))
    believed = SpaceProcess(packed, None)
    rows = packed.rows(np.arange(9))
    believed.tell(rows[[0, 8]], np.array([4.0, 1.0]))
    mean = believed.outlook(rows).mean
    assert mean[7] > mean[4] > mean[1]


def test_expected_improvement_is_what_draws_give() -> None:
    mean, deviation = np.array([0.0, -1.0, 0.5]), np.array([1.0, 0.5, 0.01])
    draws = mean + deviation * np.random.default_rng(0).standard_normal((200_000, 3))
    wanted = np.maximum(draws - 0.2, 0.0).mean(axis=0)
    assert expected_improvement(mean, deviation, 0.2) == pytest.approx(wanted, abs=0.005)


def test_products_in_pieces_are_products() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((FASTEST + LAST, 40)), rng.random((40, 700))
    np.testing.assert_allclose(product(a, b), a @ b)
    assert product(a[:0], b).shape == (0, 700)
    assert product(a[:, :0], b[:0]).shape == (FASTEST + LAST, 700)
