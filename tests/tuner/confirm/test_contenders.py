"""Who meets the incumbent: all that may be the best, by what is believed of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.setting import Setting
from tests.tuner.synthetic import matmul_kernel, small_space
from tunefarm.db import queries
from tunefarm.db.records import CONFIRMED, BestRecord, TrialRecord
from tunefarm.tuner.confirm import finalists
from tunefarm.tuner.confirm.finalists import (
    STARTERS,
    WAITING,
    Lineup,
    contested,
    lineup_of,
)
from tunefarm.tuner.search.budget import Limits
from tunefarm.tuner.search.pairwise_estimates import PairwiseEstimates
from tunefarm.tuner.search.posterior import posterior
from tunefarm.tuner.search.tasks import TuningTask, plan

COUNT = 30
UNSURE = 0.005
KIND = (matmul_kernel(), small_space(COUNT), 1)


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    """A task whose schedules were all measured; their latencies are of no concern here."""
    made = Setting(tmp_path / "tuning.db")
    made.run(Limits(), KIND)
    yield made
    made.store.close()


def hashes(task: TuningTask) -> list[str]:
    """Those of all schedules, the default's first."""
    found = [plan(task.space, task.space.candidate(i)).hash for i in range(task.space.size)]
    return sorted(found, key=lambda hash: hash != task.default.hash)


def who_meets(setting: Setting, ratios: dict[int, float]) -> Lineup | None:
    """Who meets when the schedules of these numbers take so many times as long as the default."""
    task = setting.made[0]
    pairwise = PairwiseEstimates(task.default.hash)
    found = hashes(task)
    for number, ratio in ratios.items():
        pairwise.add_known(found[number], math.log(ratio), UNSURE)
    beliefs = posterior(pairwise, [task.default.hash, *(found[n] for n in ratios)])
    return lineup_of(setting.store, task, beliefs)


def numbers(task: TuningTask, lineup: Lineup) -> list[int]:
    return [hashes(task).index(contender.hash) for contender in lineup.contenders]


def trial_of(setting: Setting, number: int) -> TrialRecord:
    task = setting.made[0]
    found = hashes(task)[number]
    trials = queries.trials(setting.store, task.key)
    return next(trial for trial in trials if trial.schedule_hash == found)


def settle(setting: Setting, number: int, ratio: float, met: list[int]) -> None:
    """As if a job had settled on a schedule."""
    trial = trial_of(setting, number)
    best = BestRecord(
        key=trial.key,
        schedule_hash=trial.schedule_hash,
        request_id=trial.request_id,
        default_latency=1e-3,
        ratio=ratio,
        low=ratio * 0.99,
        high=ratio * 1.01,
        met=tuple(hashes(setting.made[0])[one] for one in met),
        job=setting.job,
    )
    setting.store.add([best])


def test_all_that_may_be_the_best_meet_the_default(setting: Setting) -> None:
    task = setting.made[0]
    lineup = who_meets(setting, {5: 0.8, 6: 0.805, 7: 0.81, 8: 0.95, 9: 1.5})
    assert lineup is not None
    order = numbers(task, lineup)
    assert order[0] == lineup.default_number == 0
    assert set(order[1 : lineup.starters]) == {5, 6, 7}
    assert order[lineup.starters :] == [8, 9]  # in case those disappoint


def test_a_wide_field_is_cut(setting: Setting) -> None:
    lineup = who_meets(setting, dict.fromkeys(range(1, COUNT), 0.9))
    assert lineup is not None
    assert lineup.starters == 1 + STARTERS
    assert len(lineup.contenders) <= 1 + STARTERS + WAITING


@pytest.mark.parametrize("expected, claimed", [(0.8, 0.8), (0.97, 0.97), (0.985, 1.0)])
def test_what_would_not_be_applied_is_not_claimed(
    expected: float, claimed: float, setting: Setting
) -> None:
    lineup = who_meets(setting, {5: expected})
    assert lineup is not None
    assert math.exp(lineup.claimed.mean) == pytest.approx(claimed, rel=0.005)


def test_with_nothing_but_the_default_there_is_no_choice(setting: Setting) -> None:
    assert who_meets(setting, {3: 3.0}) is None


@pytest.mark.parametrize("expected, count", [(0.9, 1), (0.99, 0), (3.0, 0)])
def test_a_task_is_contested_if_its_applied_schedule_is_to_be_replaced(
    expected: float, count: int, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalists, "lineup_of", lambda *_: who_meets(setting, {5: expected}))
    assert contested(setting.store, setting.made) == count


def test_what_was_settled_is_the_incumbent(setting: Setting) -> None:
    task = setting.made[0]
    settle(setting, 4, 0.9, met=[0, 4])
    lineup = who_meets(setting, {4: 0.9, 5: 0.8})
    assert lineup is not None
    assert numbers(task, lineup) == [4, 5, 0]
    assert lineup.default_number == 2


def test_those_that_all_met_before_do_not_meet_again(setting: Setting) -> None:
    settle(setting, 4, 0.9, met=[0, 4, 5])
    assert who_meets(setting, {4: 0.9, 5: 0.89}) is None
    assert who_meets(setting, {4: 0.9, 5: 0.89, 6: 0.89}) is not None


def test_a_former_finalist_that_failed_is_out(setting: Setting) -> None:
    task = setting.made[0]
    failed = replace(
        trial_of(setting, 5),
        request_id="final",
        status="crashed",
        latency=None,
        conditions={CONFIRMED: setting.job},
    )
    setting.store.add([failed])
    lineup = who_meets(setting, {5: 0.8, 6: 0.8})
    assert lineup is not None
    assert numbers(task, lineup) == [0, 6]


def test_the_default_takes_the_place_of_an_incumbent_that_fails(setting: Setting) -> None:
    task = setting.made[0]
    settle(setting, 4, 0.9, met=[0, 4])
    lineup = who_meets(setting, {4: 0.9, 5: 0.8, 6: 0.8})
    assert lineup is not None
    left = lineup.without(hashes(task)[4])
    assert left is not None
    assert numbers(task, left)[0] == left.default_number == 0
    assert set(numbers(task, left)) == {0, 5, 6}
    assert left.starters == lineup.starters - 1
