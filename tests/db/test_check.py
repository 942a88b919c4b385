"""Checking a database finds what opening it does not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.db.examples import KEY, build, failed, populate, trial
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import model_queries, queries, schema
from tunefarm.db.check import check
from tunefarm.db.checksum import checksum_of
from tunefarm.db.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as store:
        populate(store)
        store.add([trial(1), failed(2), trial(3)])
        yield store


def test_sound_database_has_no_problems(store: Store) -> None:
    assert check(store) == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE trials SET samples = '[1' WHERE id = 3", "trials 3: samples is not JSON"),
        ("UPDATE trials SET choices = x'00ff' WHERE id = 3", "trials 3: choices is not JSON"),
        ("UPDATE workloads SET kernel = ''", "workloads 1: kernel is not JSON"),
        ("UPDATE trials SET schedule = '[]' WHERE id = 1", "trials 1: schedule is not JSON"),
        ("UPDATE trials SET schedule = x'0102' WHERE id = 1", "trials 1: schedule is not JSON"),
        ("UPDATE trials SET latency = 0.5 WHERE id = 1", "trials 1: its checksum is not right"),
        ("UPDATE tasks SET threads = 2", "tasks 1: its checksum is not right"),
        ("UPDATE machines SET checksum = NULL", "machines 1: its checksum is not right"),
        ("DELETE FROM workloads", "tasks 1: refers to a row of workloads that is not there"),
    ],
)
def test_damage_is_found(store: Store, damage: str, problem: str) -> None:
    with closing(sqlite3.connect(store.name)) as connection:
        connection.execute(damage)
        connection.commit()
    (found,) = check(store)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schedule_hash": "0" * 16}, "trials 1: the hash is not the schedule's"),
        ({"ratio": 0.5}, "trials 1: a part of what it was measured against is missing"),
        ({"latency": None}, "trials 1: ok without a latency above zero"),
    ],
)
def test_intact_rows_that_make_no_sense_are_found(
    store: Store, change: dict[str, object], problem: str
) -> None:
    with store.writing() as session:
        row = session.get_one(schema.Trial, 1)
        for name, value in change.items():
            setattr(row, name, value)
        row.checksum = checksum_of(row)
    assert check(store) == [problem]


def test_damaged_row_is_refused_by_every_reader(store: Store) -> None:
    with closing(sqlite3.connect(store.name)) as connection:
        connection.execute("UPDATE trials SET latency = 0.001 WHERE id = 3")
        connection.commit()
    for read in (
        lambda: queries.fastest_trial(store, KEY),
        lambda: queries.trials(store, KEY),
        lambda: list(queries.iterate_trials(store)),
    ):
        with pytest.raises(
            DatabaseError, match=r"trials 3: the record is damaged: .* \(tune db check"
        ):
            read()


def test_a_damaged_build_is_found_by_the_check_and_when_it_is_read_and_hinders_nothing_else(
    store: Store,
) -> None:
    store.add([build(1)])
    with closing(sqlite3.connect(store.name)) as connection:
        connection.execute("UPDATE builds SET tuned_share = 0.25")
        connection.commit()
    assert check(store) == ["builds 1: its checksum is not right"]
    with pytest.raises(DatabaseError, match="builds 1: the record is damaged"):
        model_queries.builds(store)
    with Store.open(store.name, create=False, read_only=True) as again:
        assert queries.fastest_trial(again, KEY) is not None
