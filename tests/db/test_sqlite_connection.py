"""A database file's digest and stamp tell whether records are the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.db.examples import build, plan, populate, trial
from tunefarm.db import sqlite_connection
from tunefarm.db.sqlite_connection import file_digest, records_stamp
from tunefarm.db.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as store:
        populate(store)
        store.add([trial(1)])
        yield store


def test_reading_changes_neither(store: Store) -> None:
    digest, stamp = file_digest(store.name), records_stamp(store.name)
    assert digest is not None and stamp is not None
    with Store.open(store.name, read_only=True):
        pass
    assert (file_digest(store.name), records_stamp(store.name)) == (digest, stamp)


def test_a_record_changes_both_and_a_build_only_the_digest(store: Store) -> None:
    digest, stamp = file_digest(store.name), records_stamp(store.name)
    store.add([build(1)])
    assert file_digest(store.name) != digest
    assert records_stamp(store.name) == stamp
    digest = file_digest(store.name)
    store.add([trial(2)])
    assert file_digest(store.name) != digest
    assert records_stamp(store.name) != stamp


def test_a_plan_changes_both(store: Store) -> None:
    digest, stamp = file_digest(store.name), records_stamp(store.name)
    store.add([plan(1)])
    assert file_digest(store.name) != digest
    assert records_stamp(store.name) != stamp


def test_a_record_that_takes_the_place_of_another_changes_the_stamp(store: Store) -> None:
    stamp = records_stamp(store.name)
    store.delete_trials([1])
    store.add([trial(2)])
    after = records_stamp(store.name)
    assert after is not None and stamp is not None and after != stamp


def test_what_is_only_in_a_write_ahead_log_counts(store: Store) -> None:
    with closing(sqlite3.connect(store.name)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        digest, stamp = file_digest(store.name), records_stamp(store.name)
        connection.execute("UPDATE trials SET checksum = checksum + 1")
        connection.commit()
        assert file_digest(store.name) not in (None, digest)
        assert records_stamp(store.name) not in (None, stamp)


def test_nothing_is_said_of_a_transaction_that_was_cut_short(store: Store) -> None:
    Path(f"{store.name}-journal").write_bytes(b"")
    assert file_digest(store.name) is None


def test_nothing_is_said_of_what_is_no_file_of_ours(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "no.db", tmp_path, "postgresql://user@127.0.0.1/db"):
        assert file_digest(path) is None
        assert records_stamp(path) is None
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE trials (id INTEGER)")
    assert records_stamp(other) is None
    monkeypatch.setattr(sqlite_connection, "_MOST_BYTES", 4096)
    assert file_digest(store.name) is None
