"""Merging databases: everything of both, nothing twice, and the other one stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.db.examples import KEY, build, failed, latency, paired, plan, populate, trial
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import model_queries, queries
from tunefarm.db.export import export_records, merge_records
from tunefarm.db.records import BestRecord, JobTask, Record, TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store


def fill(store: Store, *numbers: int) -> None:
    """A job with these trials, the first of them its best."""
    populate(store)
    job = store.start_job("resnet18", "abc", {"search": {"seed": 3}}, [JobTask(KEY, 4)])
    store.add(
        paired(number, 1, job=job.id) if number % 2 == 0 else trial(number, job=job.id)
        for number in numbers
    )
    hash = trial(numbers[0]).schedule_hash
    request = f"request-{numbers[0]}"
    created = float(numbers[0])
    best = BestRecord(KEY, hash, request, 1.0, 0.5, 0.4, 0.6, (hash,), job.id, created)
    store.add([best])
    store.add([build(numbers[0])])
    store.add([plan(numbers[0])])
    store.add([latency(numbers[0], job=job.id)])
    store.finish_job(job.id, "finished")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    with Store.open(tmp_path / "here.db") as here, Store.open(tmp_path / "there.db") as there:
        fill(here, 1, 2, 3)
        fill(there, 3, 4, 5, 6)
        there.add([failed(7, error="signal 11")])
        yield here, there


def _pair(trial: TrialRecord) -> tuple[object, ...]:
    return trial.reference, trial.ratio, trial.low, trial.high, trial.reference_samples


def content(store: Store) -> dict[str, Any]:
    """What a store holds, whatever the order in which it came."""
    return {
        "targets": queries.targets(store),
        "workloads": queries.workloads(store),
        "jobs": {job.id: (job.state, job.settings, job.tasks) for job in queries.jobs(store)},
        "trials": {
            (t.key, t.schedule_hash, t.request_id): (t.status, t.samples, t.error, _pair(t))
            for t in queries.iterate_trials(store)
        },
        "bests": {(best.job, best.schedule_hash) for best in queries.iterate_bests(store)},
        "builds": {build.id: build for build in model_queries.builds(store)},
        "plans": {plan.id: plan for plan in model_queries.plans(store)},
        "latencies": {found.id: found for found in model_queries.latencies(store)},
    }


def test_both_ways_give_the_same_content(stores: tuple[Store, Store], tmp_path: Path) -> None:
    here, there = stores
    with Store.open(tmp_path / "copy.db") as copy:
        merge_records(copy, here)
        assert content(copy) == content(here)
        assert merge_records(here, there).trials == 4  # 3 is in both
        assert merge_records(there, copy).trials == 2
    assert content(here) == content(there)
    assert sum(queries.count_trials(here).values()) == 7
    assert len(queries.jobs(here)) == 2


def test_merging_again_adds_nothing(stores: tuple[Store, Store]) -> None:
    here, there = stores
    merge_records(here, there)
    before = content(here)
    assert merge_records(here, there).trials == 0
    assert content(here) == before


def test_the_newest_verdict_of_both_is_applied(stores: tuple[Store, Store]) -> None:
    here, there = stores
    merge_records(here, there)
    found = queries.best(here, KEY)
    assert found is not None
    assert found[0].schedule_hash == trial(3).schedule_hash


def test_the_source_is_only_read(stores: tuple[Store, Store], tmp_path: Path) -> None:
    here, there = stores
    first, again = tmp_path / "first.jsonl", tmp_path / "again.jsonl"
    export_records(there, first)
    merge_records(here, there)
    export_records(there, again)
    assert first.read_bytes() == again.read_bytes()


def test_a_database_is_not_merged_into_itself(stores: tuple[Store, Store], tmp_path: Path) -> None:
    here, _ = stores
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "here.db")
    with Store.open(link, read_only=True) as same, pytest.raises(DatabaseError, match="itself"):
        merge_records(here, same)


def test_two_databases_in_memory_are_two() -> None:
    with Store.open(":memory:") as here, Store.open(":memory:") as there:
        fill(there, 1, 2)
        assert merge_records(here, there).trials == 2
        assert content(here) == content(there)


def test_a_merge_that_broke_off_can_be_done_again(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the trials, say."""
    here, there = stores
    before = content(there)
    with monkeypatch.context() as patched:
        patched.setattr(here, "add", _failing_at_bests(here.add))
        with pytest.raises(DatabaseError, match="disk full"):
            merge_records(here, there)
    assert merge_records(here, there).trials == 0
    assert set(before["trials"]) <= set(content(here)["trials"])
    assert len(list(queries.iterate_bests(here))) == 2


def _failing_at_bests(
    add: Callable[[Iterable[Record], int | None], int],
) -> Callable[[Sequence[Record], int | None], int]:
    def failing(records: Sequence[Record], addition: int | None) -> int:
        if isinstance(records[0], BestRecord):
            raise DatabaseError("disk full")
        return add(records, addition)

    return failing


def test_merge_takes_nothing_of_a_database_with_a_record_that_cannot_be(tmp_path: Path) -> None:
    """Its checksums are right: whoever made it wrote it so."""
    evil = TaskKey("<img src=x>", KEY.target, 1, "default", "1")
    with Store.open(tmp_path / "evil.db") as there, Store.open(tmp_path / "mine.db") as here:
        populate(there)
        there.add([WorkloadRecord(evil.workload, "conv", {})])
        there.add([trial(1), trial(2, key=evil)])
        with pytest.raises(DatabaseError, match=r"evil.db: a workload that cannot be: key: '<img"):
            merge_records(here, there)
        assert queries.workloads(here) == {}
        assert queries.count_trials(here) == {}
