"""The attack on databases finds nothing in a sample, and finds what is planted."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.attack import databases
from tests.attack.databases import COMMANDS, DatabaseAttack, reading_commands
from tunefarm.db import prepare, schema


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseAttack]:
    made = DatabaseAttack(tmp_path_factory.mktemp("databases"))
    yield made
    made.close()


def test_every_command_that_reads_a_database_is_attacked() -> None:
    attacked = {name.partition(" (")[0] for name in COMMANDS}
    assert reading_commands() - attacked == set(databases.READ_OTHERWISE)


@pytest.mark.nightly
def test_a_few_attempts_find_nothing(attack: DatabaseAttack) -> None:
    for seed in range(6):
        outcome = attack.attempt(seed)
        assert not outcome.broke, outcome.detail


@pytest.mark.nightly
def test_without_checksums_a_changed_value_is_found(
    attack: DatabaseAttack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: rows are believed as they are."""
    monkeypatch.setattr(prepare, "damage", lambda table, row: "")
    monkeypatch.setattr("tunefarm.db.raw_rows.damage", lambda table, row: "")
    monkeypatch.setattr(schema, "checksum_of", lambda row: row.checksum)
    monkeypatch.setattr(databases, "DAMAGES", [("another date", _change_dates)])
    names = ("db export", *databases._SLOW)
    monkeypatch.setattr(databases, "COMMANDS", {name: COMMANDS[name] for name in names})
    monkeypatch.setattr(attack, "commands_per_attempt", 1)
    seed = next(n for n in range(100) if random.Random(n).random() >= 0.15)
    outcome = attack.attempt(seed)
    assert outcome.broke
    assert "it answers otherwise, and does not say why" in outcome.detail


def _change_dates(path: Path, rng: random.Random) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trials SET created = created + 86400, run_seconds = 1.0")
    return "all trials"
