"""What came from elsewhere is known apart, and the last of it can be undone without a trace."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.db.examples import KEY, plan, trial
from tests.db.test_merge import content, fill
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.additions import additions, bringing, roll_back
from tunefarm.db.export import export_records, import_records, merge_records
from tunefarm.db.records import BestRecord, TargetRecord, TaskKey, WorkloadRecord
from tunefarm.db.store import Store

OTHER = TaskKey("0123456789abcdef", "other/4", 1, "default", "1")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    with Store.open(tmp_path / "here.db") as here, Store.open(tmp_path / "there.db") as there:
        fill(here, 1, 2, 3)
        fill(there, 3, 4, 5, 6)
        there.add([WorkloadRecord(OTHER.workload, "matmul", {})])
        there.add([TargetRecord(OTHER.target, {"cpu": "other"})])
        there.add([trial(8, key=OTHER, machine={"cpu": "other"})])
        yield here, there


def rows(store: Store) -> dict[str, int]:
    with closing(sqlite3.connect(store.name)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in tables
        }


def test_a_merge_that_is_undone_leaves_no_trace(stores: tuple[Store, Store]) -> None:
    here, there = stores
    before, counted = content(here), rows(here)
    merge_records(here, there)
    assert content(here) != before
    (addition,) = additions(here).values()
    assert (addition.kind, addition.source) == ("merge", there.name)
    assert addition.finished is not None
    undone = roll_back(here)
    assert undone.addition == addition
    assert undone.rows["trials"] == 4
    assert (content(here), rows(here)) == (before, counted)
    here.add([trial(9)])  # numbers of deleted rows are forgotten
    with pytest.raises(DatabaseError, match="nothing was imported, merged or added"):
        roll_back(here)


def test_additions_are_undone_one_by_one_the_last_first(
    stores: tuple[Store, Store], tmp_path: Path
) -> None:
    here, there = stores
    states = [content(here)]
    merge_records(here, there)
    states.append(content(here))
    with Store.open(tmp_path / "third.db") as third:
        fill(third, 9, 10)
        export_records(third, tmp_path / "third.jsonl")
    import_records(here, tmp_path / "third.jsonl")
    for kind, state in (("import", states[1]), ("merge", states[0])):
        assert roll_back(here).addition.kind == kind
        assert content(here) == state


def test_what_is_known_already_stays_when_it_came_again(stores: tuple[Store, Store]) -> None:
    here, there = stores
    merge_records(here, there)
    merge_records(here, there)  # brings nothing, so there is nothing of it to undo
    assert len(additions(here)) == 1


def test_a_merge_that_was_broken_off_goes_on_as_the_same(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = stores
    before, calls = content(here), itertools.count()
    add = Store.add

    def interrupted(self: Store, *arguments: object) -> int:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return add(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        merge_records(here, there)
    assert [item.finished for item in additions(here).values()] == [None]
    merge_records(here, there)
    assert len(additions(here)) == 1
    roll_back(here)
    assert content(here) == before


def test_what_a_job_has_gone_on_from_is_not_undone(stores: tuple[Store, Store]) -> None:
    here, there = stores
    merge_records(here, there)
    job = here.start_job("resnet18", "abc", {})
    foreign = trial(5)
    best = (foreign.schedule_hash, foreign.request_id, 1.0, 0.5, 0.4, 0.6, ())
    here.add([BestRecord(KEY, *best, job.id)])
    before = content(here)
    with pytest.raises(DatabaseError, match="cannot be undone: a job has gone on from"):
        roll_back(here)
    assert content(here) == before


def test_one_that_fails_before_it_brings_anything_is_not_listed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "here.db") as here:
        with pytest.raises(RuntimeError), bringing(here, "pack", "a.pack"):
            raise RuntimeError
        assert additions(here) == {}


def test_verdicts_of_checks_and_plans_with_their_cpu_survive_an_export(tmp_path: Path) -> None:
    with Store.open(tmp_path / "here.db") as here, Store.open(tmp_path / "there.db") as there:
        fill(here, 1, 2)
        checked = trial(2, request_id="check")
        here.add([checked])
        named = (checked.schedule_hash, checked.request_id)
        here.add([BestRecord(KEY, *named, 1.0, 0.5, 0.4, 0.6, (), None)])
        here.add([plan(7, cpu="Example 3000")])
        export_records(here, tmp_path / "all.jsonl")
        import_records(there, tmp_path / "all.jsonl")
        assert content(there) == content(here)
        assert [best.job for best in queries.iterate_bests(there)][-1] is None
