"""Pruning: what is applied stays, what teaches stays, the file gets smaller."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.db.examples import KEY, failed, paired, populate, trial
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.records import BestRecord, TrialRecord
from tunefarm.db.store import Store
from tunefarm.tuner.records.estimates import grouped
from tunefarm.tuner.records.prune import plan_pruning, prune
from tunefarm.tuner.records.trials import record_to_apply

COUNT = 400


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Trials of 1 to 400 ms in a shuffled order, 40 failures, and a verdict on a slow one."""
    with Store.open(tmp_path / "tuning.db") as store:
        populate(store)
        order = [(7 * i) % COUNT + 1 for i in range(COUNT)]
        store.add(trial(i, 1e-3 * i) for i in order)
        store.add(failed(1000 + i, error="signal 11 " * 50) for i in range(40))
        yield store


def settle(store: Store, number: int) -> TrialRecord:
    """A job settles on this trial."""
    job = store.start_job("model", "hash", {})
    chosen = trial(number)
    best = BestRecord(KEY, chosen.schedule_hash, chosen.request_id, 1.0, 1.0, 1.0, 1.0, (), job.id)
    store.add([best])
    return chosen


def latencies(store: Store) -> list[float]:
    return sorted(r.latency for r in queries.trials(store, KEY) if r.latency is not None)


def test_the_fastest_and_a_spread_of_the_others_stay(store: Store) -> None:
    tasks = plan_pruning(store, 80)
    assert prune(store, tasks) == COUNT + 40 - 80
    left = latencies(store)
    assert left[:35] == pytest.approx([1e-3 * i for i in range(1, 36)])
    assert left[-1] > 0.38
    gaps = [b - a for a, b in itertools.pairwise(left[36:])]
    assert max(gaps) < 0.02
    assert queries.count_trials(store)["crashed"] == 10


def test_what_a_job_has_settled_on_stays(store: Store) -> None:
    chosen = settle(store, 333)
    applied = record_to_apply(store, KEY)
    prune(store, plan_pruning(store, 20))
    assert queries.best(store, KEY) is not None
    assert record_to_apply(store, KEY) == applied
    assert applied is not None and applied[0].schedule_hash == chosen.schedule_hash
    assert check(store) == []


def test_what_kept_trials_were_measured_against_stays(tmp_path: Path) -> None:
    """Also what that was measured against, although it is slow."""
    with Store.open(tmp_path / "pairs.db") as store:
        populate(store)
        store.add([trial(1, 5.0), paired(2, 1, latency=4.0)])
        store.add(trial(n, 1.0 + n / 1000) for n in range(10, 60))
        store.add(paired(n, 2, latency=n / 1000) for n in range(60, 100))
        (task,) = plan_pruning(store, 8)
        assert task.references == 2
        prune(store, [task])
        left = {record.schedule_hash for record in queries.trials(store, KEY)}
        assert {trial(1).schedule_hash, trial(2).schedule_hash} < left
        assert len(left) == 8 + 2
        assert queries.without_reference(store) == []


def test_a_schedule_that_was_measured_again_stays_or_goes_with_all_its_trials(
    store: Store,
) -> None:
    """Its luckiest trial alone would be applied."""
    store.add([replace(trial(300, 0.5e-3), request_id="lucky")])
    applied = record_to_apply(store, KEY)
    prune(store, plan_pruning(store, 40))
    groups = grouped(queries.trials(store, KEY))
    assert len(groups.get(trial(300).schedule_hash, (1, 2))) == 2
    assert record_to_apply(store, KEY) == applied


def test_what_was_lost_to_noise_goes_first(store: Store) -> None:
    store.add(failed(2000 + i, "scattered") for i in range(20))
    prune(store, plan_pruning(store, 400))
    assert queries.count_trials(store).keys() == {"ok", "crashed"}


def test_a_database_below_the_limit_is_left_alone(store: Store) -> None:
    assert plan_pruning(store, COUNT + 40) == []


def test_planning_changes_nothing(store: Store) -> None:
    before = queries.trials(store, KEY)
    (task,) = plan_pruning(store, 80)
    assert (task.trials, len(task.dropped)) == (COUNT + 40, COUNT + 40 - 80)
    assert queries.trials(store, KEY) == before


def test_pruning_twice_drops_nothing_more(store: Store) -> None:
    prune(store, plan_pruning(store, 80))
    assert plan_pruning(store, 80) == []


def test_the_file_gets_smaller(store: Store, tmp_path: Path) -> None:
    before = (tmp_path / "tuning.db").stat().st_size
    prune(store, plan_pruning(store, 10))
    assert (tmp_path / "tuning.db").stat().st_size < before


def test_other_tasks_are_not_touched(store: Store) -> None:
    other = replace(KEY, threads=2)
    store.add(replace(trial(i), key=other) for i in range(1, 21))
    prune(store, plan_pruning(store, 40))
    assert len(queries.trials(store, other)) == 20


def test_a_trial_that_a_verdict_needs_cannot_be_deleted(store: Store) -> None:
    settle(store, 5)
    records = queries.trials(store, KEY)
    numbers = [record.number for record in records if record.number is not None]
    with pytest.raises(DatabaseError, match="FOREIGN KEY"):
        store.delete_trials(numbers)
    assert len(queries.trials(store, KEY)) == len(records)
