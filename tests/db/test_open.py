"""Opening a database: what becomes one, what is refused, and that nothing is overwritten."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.db.examples import KEY, populate, trial
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries, sqlite_file
from tunefarm.db.store import Store


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with 200 trials."""
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        populate(store)
        store.add(trial(number) for number in range(1, 201))
    return path


def refused(path: Path, reason: str, *, read_only: bool = False) -> None:
    """Opening fails with one line that names the file and the reason, and changes nothing."""
    before = contents(path.parent)
    with pytest.raises(DatabaseError) as caught:
        Store.open(path, read_only=read_only)
    text = str(caught.value)
    assert str(path) in text
    assert reason in text
    assert "\n" not in text
    assert contents(path.parent) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_missing_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "new folder #1" / "tuning 100%?.db"
    path.parent.mkdir()
    with Store.open(path) as store:
        populate(store)
    assert list(path.parent.iterdir()) == [path]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (0x74756E65,)


def test_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    path.touch()
    Store.open(path).close()
    with Store.open(path, create=False) as store:
        assert queries.count_trials(store) == {}


def test_records_are_there_after_reopening(database: Path) -> None:
    with Store.open(database, create=False) as store:
        assert queries.count_trials(store, KEY) == {"ok": 200}


def test_missing_file_is_an_error_unless_it_may_be_made(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    for read_only in (False, True):
        with pytest.raises(DatabaseError, match=r"no such database: .*tuning.db \(tune MODEL"):
            Store.open(path, create=read_only, read_only=read_only)
        assert not path.exists()


def test_connections_are_set_up_for_safety(database: Path) -> None:
    with Store.open(database) as store, store.reading() as session:
        connection = session.connection()

        def pragma(name: str) -> object:
            return connection.exec_driver_sql(f"PRAGMA {name}").scalar()

        safe_with_wal = sqlite3.sqlite_version_info >= (3, 51, 3)
        assert pragma("journal_mode") == ("wal" if safe_with_wal else "delete")
        assert pragma("synchronous") == 2  # FULL
        assert pragma("foreign_keys") == 1
        assert pragma("busy_timeout") == 30_000


@pytest.mark.skipif(sqlite_file._WAL_IS_SAFE, reason="this SQLite is safe with a write-ahead log")
def test_write_ahead_log_of_a_newer_sqlite_is_turned_off(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
    with Store.open(database) as store, store.reading() as session:
        mode = session.connection().exec_driver_sql("PRAGMA journal_mode").scalar()
        assert mode == "delete"
        assert queries.count_trials(store) == {"ok": 200}


@pytest.mark.parametrize("content", [b"x", b"not a database\n" * 100, b"\0" * 4096])
def test_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    refused(path, "is not a tuning database")
    refused(path, "is not a tuning database", read_only=True)


def test_database_of_another_application_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
        connection.commit()
    refused(path, "is a database of another application")
    refused(path, "is a database of another application", read_only=True)


def test_interrupted_transaction_of_another_application_is_left_alone(tmp_path: Path) -> None:
    """The journal is not rolled back: that is for the application whose file it is."""
    path = tmp_path / "bookmarks.db"
    copy = tmp_path / "copy" / "bookmarks.db"
    copy.parent.mkdir()
    leave_journal(path, copy)
    refused(copy, "is a database of another application")


@pytest.mark.parametrize("read_only", [False, True])
def test_interrupted_transaction_of_ours_is_rolled_back(
    read_only: bool, database: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy" / "tuning.db"
    copy.parent.mkdir()
    leave_journal(database, copy)
    with Store.open(copy, read_only=read_only) as store:
        assert queries.count_trials(store, KEY) == {"ok": 200}
        assert read_only or store.add([trial(1000)]) == 1


def leave_journal(path: Path, copy: Path) -> None:
    """Make `copy` what a crash in the middle of a transaction leaves of `path`."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = delete")
        connection.execute("CREATE TABLE IF NOT EXISTS filler (bytes BLOB)")
        connection.execute("INSERT INTO filler VALUES (zeroblob(200000))")
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE filler SET bytes = randomblob(200000)")
        for row in range(50):
            connection.execute("INSERT INTO filler VALUES (randomblob(5000 + ?))", (row,))
        journal = path.with_name(path.name + "-journal")
        assert journal.stat().st_size > 512
        copy.write_bytes(path.read_bytes())
        copy.with_name(copy.name + "-journal").write_bytes(journal.read_bytes())
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("keep", [1, 99, 100, 512, 4096, 20_000, -100])
def test_truncated_file_is_refused(database: Path, keep: int) -> None:
    database.write_bytes(database.read_bytes()[:keep])
    refused(database, "is not a tuning database" if 0 < keep < 512 else "is damaged")


def test_overwritten_page_is_refused(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[8 * 4096 : 9 * 4096] = b"\xa5" * 4096
    database.write_bytes(content)
    refused(database, "is damaged")


def test_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "is a folder")


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "tuning.db"
    with pytest.raises(DatabaseError, match=r"cannot create .* its folder does not exist"):
        Store.open(path)
    assert not path.parent.exists()


def test_unwritable_folder_is_refused(unwritable_folder: Path) -> None:
    refused(unwritable_folder / "tuning.db", "unable to open database file")


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("x" * 300, "File name too long"),
        (f"{__file__}/tuning.db", "cannot create"),
        ("", "not a file name"),
        ("a\0b", "not a file name"),
        ("mysql://user:secret@host/records", r"of kind mysql are not supported \(give a file"),
        ("postgresql+asyncpg://host/records", r"of kind postgresql\+asyncpg are not supported"),
        ("://", "not a database URL"),
    ],
)
def test_impossible_location_is_refused(location: str, reason: str) -> None:
    with pytest.raises(DatabaseError, match=reason):
        Store.open(location)


def test_reading_only_changes_nothing(database: Path) -> None:
    before = contents(database.parent)
    with Store.open(database, read_only=True) as store:
        assert queries.fastest_trial(store, KEY) is not None
        with pytest.raises(DatabaseError, match="is open for reading only"):
            store.add([trial(1000)])
    assert contents(database.parent) == before


def test_vanished_table_is_a_readable_error(database: Path) -> None:
    with Store.open(database) as store:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("DROP TABLE trials")
        with pytest.raises(DatabaseError, match=r"tuning.db: no such table: trials"):
            queries.count_trials(store)


def test_damaged_record_is_a_readable_error(database: Path) -> None:
    with Store.open(database) as store:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("UPDATE trials SET samples = '[1.0,' WHERE id = 3")
            connection.commit()
        with pytest.raises(DatabaseError, match=r"a record is damaged: it holds invalid JSON"):
            queries.trials(store, KEY)


@pytest.mark.parametrize("create", [True, False])
def test_links_that_lead_in_a_circle_are_refused(create: bool, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(DatabaseError):
        Store.open(tmp_path / "a", create=create)
