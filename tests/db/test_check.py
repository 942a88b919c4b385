"""Checking a database finds what opening it does not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from db.check import check
from db.store import Store
from tests.db.examples import failed, populate, trial


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as store:
        populate(store)
        store.record_trials([trial(1), failed(2), trial(3)])
        yield store


def test_sound_database_has_no_problems(store: Store) -> None:
    assert check(store) == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE trials SET samples = '[1' WHERE id = 3", "trials 3: samples is not JSON"),
        ("UPDATE trials SET choices = x'00ff' WHERE id = 3", "trials 3: choices is not JSON"),
        ("UPDATE workloads SET kernel = ''", "workloads 1: kernel is not JSON"),
        ("UPDATE trials SET schedule = '[]' WHERE id = 1", "trials 1: the hash is not the"),
        ("UPDATE trials SET latency = NULL WHERE id = 1", "trials 1: ok without a latency"),
        ("DELETE FROM workloads", "tasks 1: refers to a row of workloads that is not there"),
    ],
)
def test_damage_is_found(store: Store, damage: str, problem: str) -> None:
    with closing(sqlite3.connect(store.name)) as connection:
        connection.execute(damage)
        connection.commit()
    (found,) = check(store)
    assert found.startswith(problem)
