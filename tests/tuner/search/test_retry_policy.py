"""A job waits for its database, says so once a minute, and stops waiting when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.db.examples import populate, trial
from tests.tuner.setting import Messages
from tunefarm.configs.errors import DatabaseUnavailableError
from tunefarm.db import sqlite_file
from tunefarm.db.store import Store
from tunefarm.tuner.search.job_coordination import REMIND_SECONDS, RetryPolicy

FULL = DatabaseUnavailableError("tuning.db: database or disk is full")


class Waiting:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.messages = Messages()
        self.patience = RetryPolicy(self.messages, sleep=self.sleep, clock=lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_user_is_told_once_a_minute() -> None:
    waiting = Waiting()
    while waiting.now < 2.5 * REMIND_SECONDS:
        assert waiting.patience(FULL)
    assert len(waiting.messages.said) == 3
    assert "disk is full: the job pauses" in waiting.messages.said[0]


def test_waiting_ends_when_the_job_is_stopped() -> None:
    waiting = Waiting()
    waiting.patience.stop()
    assert not waiting.patience(FULL)
    assert waiting.now == 0.0


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Store]]:
    """A database, opened twice by impatient connections."""
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.02)
    path = tmp_path / "tuning.db"
    with Store.open(path) as store, Store.open(path) as other:
        populate(store)
        yield store, other


def test_a_write_goes_on_when_the_database_is_free_again(stores: tuple[Store, Store]) -> None:
    store, other = stores
    with ExitStack() as held:
        held.enter_context(other.writing()).connection()
        asked: list[str] = []

        def let_go(error: DatabaseUnavailableError) -> bool:
            asked.append(error.message)
            held.close()
            return True

        store.patience = let_go
        assert store.add([trial(1)]) == 1
    assert len(asked) == 1 and "locked" in asked[0]


def test_without_patience_an_unavailable_database_is_an_error(
    stores: tuple[Store, Store],
) -> None:
    store, other = stores
    with other.writing() as session:
        session.connection()
        with pytest.raises(DatabaseUnavailableError, match="locked"):
            store.add([trial(1)])
