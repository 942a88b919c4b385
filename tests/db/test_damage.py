"""A value that is not what was written is an error wherever it is read: by opening, by readers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.db.examples import KEY, build, paired, populate, trial
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries, sqlite_file
from tunefarm.db.check import check
from tunefarm.db.export import export_records
from tunefarm.db.store import Store
from tunefarm.db.work import close_lost_jobs
from tunefarm.tuner.commands.database_commands import builds_table, list_table, list_to_json, listed
from tunefarm.tuner.pages.page import page_of
from tunefarm.tuner.records.prune import plan_pruning

WRONG = {
    "another date": ("trials", "created", 2e9),
    "a date beyond any calendar": ("trials", "created", 1e300),
    "an infinite date": ("trials", "created", "9e999"),
    "text for a date": ("trials", "created", "'soon'"),
    "bytes for a date": ("trials", "created", "x'0102'"),
    "no date": ("trials", "latency", "NULL"),
    "another latency": ("trials", "latency", 0.25),
    "an infinite latency": ("trials", "latency", "-9e999"),
    "text for a latency": ("trials", "latency", "'fast'"),
    "digits as bytes": ("trials", "latency", "x'302E35'"),
    "another status": ("trials", "status", "'lost'"),
    "a status that is no text": ("trials", "status", "x'FF'"),
    "another task": ("trials", "task_id", 2),
    "a task that is no number": ("trials", "confirmed", "'one'"),
    "a huge number": ("trials", "confirmed", 2**62),
    "no JSON": ("trials", "choices", "'{'"),
    "JSON that never ends": ("trials", "samples", "'" + "[" * 5000 + "'"),
    "a number of many digits": ("trials", "samples", "'[" + "9" * 5000 + "]'"),
    "NaN": ("trials", "samples", "'[NaN]'"),
    "text that was packed": ("trials", "schedule", "'[]'"),
    "a number that was packed": ("trials", "conditions", 7),
    "a pair without a ratio": ("trials", "ratio", "NULL"),
    "a pair that is gone": ("trials", "reference", "NULL"),
    "no slices of the reference": ("trials", "reference_samples", "NULL"),
    "slices that were packed": ("trials", "reference_samples", "'[1.0]'"),
    "no checksum": ("trials", "checksum", "NULL"),
    "a checksum that is no number": ("trials", "checksum", "'x'"),
}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        populate(store)
        store.add([trial(1), paired(2, 1), trial(3, 0.3), trial(4, 0.25)])
        store.add([build(1)])
    return path


def edit(path: Path, table: str, column: str, value: object, number: int = 2) -> None:
    """Change a value as SQL would, so that the structure of the file stays whole."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE {table} SET {column} = {value} WHERE id = {number}")


def _export(store: Store) -> object:
    return export_records(store, Path(store.name).with_suffix(".jsonl"))


READERS: dict[str, Callable[[Store], object]] = {
    "list": lambda store: list_table(listed(store)),
    "list --json": lambda store: list_to_json(listed(store)),
    "export": _export,
    "prune": lambda store: plan_pruning(store, 2),
    "report": page_of,
    "trials": lambda store: queries.trials(store, KEY),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_opening_finds_a_wrong_value(wrong: str, database: Path) -> None:
    edit(database, *WRONG[wrong])
    with pytest.raises(DatabaseError, match=r"trials 2: |text in it is not valid|not UTF-8"):
        Store.open(database, read_only=True)


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_finds_wrong_values_of_a_large_file(
    reader: str, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_EVERY_ROW_BYTES", 0)
    original = database.read_bytes()
    for wrong, (table, column, value) in WRONG.items():
        database.write_bytes(original)
        edit(database, table, column, value)
        with Store.open(database, read_only=True) as store:
            if (reader, wrong) == ("trials", "another task"):
                continue  # it is another task's now, which the trial of that task shows
            with pytest.raises(DatabaseError) as caught:
                READERS[reader](store)
            assert "\n" not in str(caught.value)
            assert check(store)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_is_left_out_where_that_is_asked(
    wrong: str, read_only: bool, database: Path
) -> None:
    edit(database, *WRONG[wrong])
    with Store.open(database, read_only=read_only, leave_damaged=True) as store:
        assert set(queries.damaged(store)) == {"trials 2"}
        assert [record.number for record in queries.trials(store, KEY)] == [1, 3, 4]
        assert [found.number for found in queries.contenders(store, KEY, 9)] == [1, 3, 4]
        assert queries.count_trials(store, KEY) == {"ok": 3}
        assert len(check(store)) >= 1


def test_a_large_file_is_looked_through_when_that_is_asked(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_EVERY_ROW_BYTES", 0)
    edit(database, *WRONG["another latency"])
    with Store.open(database, read_only=True, leave_damaged=True) as store:
        with pytest.raises(DatabaseError):
            queries.trials(store, KEY)
        assert store.leave_damaged()
        assert len(queries.trials(store, KEY)) == 3
        assert not store.leave_damaged()


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("machines", "description"),
        ("tasks", "threads"),
        ("workloads", "kernel"),
        ("targets", "description"),
    ],
)
def test_what_refers_to_a_damaged_row_is_left_with_it_and_new_records_get_another(
    table: str, column: str, database: Path
) -> None:
    with Store.open(database) as store:
        known = [*queries.targets(store).values()], [*queries.workloads(store).values()]
        first = queries.trials(store, KEY)[0]
    edit(database, table, column, "'{'" if column != "threads" else 77, 1)
    with Store.open(database, read_only=True, leave_damaged=True) as store:
        left = queries.damaged(store)
        assert f"{table} 1" in left and "which it refers to, is damaged" in left["trials 1"]
        assert queries.trials(store, KEY) == []
    for number in (1, 2):
        with Store.open(database, leave_damaged=True) as store:
            for records in known:
                store.add(records)
            assert store.add([replace(first, request_id=f"new {number}", job=None)]) == 1
            assert len(queries.trials(store, KEY)) == number
            assert queries.damaged(store) == left
    with pytest.raises(DatabaseError, match=f"{table} 1: "):
        Store.open(database)


def test_a_damaged_job_is_in_the_way_of_no_other(database: Path) -> None:
    with Store.open(database) as store:
        store.start_job("model.onnx", "hash", {})
    edit(database, "jobs", "state", "'running '", 1)
    with Store.open(database, leave_damaged=True) as store:
        assert close_lost_jobs(store) == []
        job = store.start_job("model.onnx", "hash", {})
        assert list(queries.jobs(store)) == [job]


def test_a_wrong_build_is_not_listed(database: Path) -> None:
    """Nor is it in the way of anything else."""
    edit(database, "builds", "created", 1e300, 1)
    with (
        Store.open(database, read_only=True) as store,
        pytest.raises(DatabaseError, match="builds 1: the record is damaged"),
    ):
        builds_table(store, 50)


def test_a_row_that_is_referred_to_and_gone_is_found(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM machines")
    with pytest.raises(DatabaseError, match="refers to a row of machines that is not there"):
        Store.open(database, read_only=True)


def test_a_table_that_is_gone_is_found(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DROP TABLE bests")
    with pytest.raises(DatabaseError, match="it has no table bests"):
        Store.open(database, read_only=True)


def test_moments_beyond_the_calendar_are_shown_as_none(database: Path) -> None:
    """They are numbers, and nothing is wrong with the file."""
    with Store.open(database) as store:
        store.add([trial(9, created=1e300)])
        assert list_table(listed(store)).columns[-1]._cells == ["-"]
