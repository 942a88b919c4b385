"""Databases on media and in folders that cannot be written: read, with all that their log holds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.db.examples import KEY, populate, trial
from tests.db.test_open import leave_journal
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries, sqlite_file
from tunefarm.db.check import schema_of
from tunefarm.db.schema import REVISION
from tunefarm.db.sqlite_connection import records_stamp
from tunefarm.db.store import Store

_IN_FILE, _IN_LOG = 3, 5  # trials


@contextmanager
def as_owner(folder: Path) -> Iterator[None]:
    """Write to a folder that this user otherwise only reads."""
    user = os.geteuid()
    os.seteuid(os.getuid())
    folder.chmod(0o755)
    try:
        yield
    finally:
        folder.chmod(0o555)
        os.seteuid(user)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """A database in WAL mode, its log, and the index of that, as they are while it is open."""
    monkeypatch.setattr(sqlite_file, "_WAL_IS_SAFE", True)
    path = tmp_path / "t.db"
    with Store.open(path) as store:
        populate(store)
        store.add(trial(number) for number in range(1, 1 + _IN_FILE))
    with Store.open(path) as store:
        store.add(trial(number) for number in range(100, 100 + _IN_LOG))
        yield [path, tmp_path / "t.db-wal", tmp_path / "t.db-shm"]


@pytest.mark.parametrize(
    ("names", "trials"),
    [
        (("t.db",), _IN_FILE),
        (("t.db", "t.db-wal"), _IN_FILE + _IN_LOG),
        (("t.db", "t.db-wal", "t.db-shm"), _IN_FILE + _IN_LOG),
    ],
    ids=["alone", "with its log", "with log and index"],
)
def test_a_copy_in_a_folder_that_cannot_be_written_is_read(
    names: tuple[str, ...], trials: int, parts: list[Path], unwritable_folder: Path
) -> None:
    with as_owner(unwritable_folder):
        for part in parts:
            if part.name in names:
                shutil.copy(part, unwritable_folder)
    path = unwritable_folder / "t.db"
    for _ in range(2):
        with Store.open(path, read_only=True) as store:
            assert queries.count_trials(store, KEY) == {"ok": trials}
            with store.reading(), store.reading():
                assert queries.count_trials(store, KEY) == {"ok": trials}
    assert schema_of(path) == REVISION
    assert records_stamp(path) is not None
    assert sorted(os.listdir(unwritable_folder)) == sorted(names)


def in_folder(folder: Path) -> str:
    return "its folder can only be read"


def in_file(folder: Path) -> str:
    with as_owner(folder):
        os.chmod(folder / "t.db", 0o444)
    return "it can only be read"


@pytest.mark.parametrize("barred", [in_folder, in_file])
def test_writing_there_is_one_error_with_the_way_out(
    barred: Callable[[Path], str], parts: list[Path], unwritable_folder: Path
) -> None:
    path = unwritable_folder / "t.db"
    with as_owner(unwritable_folder):
        shutil.copy(parts[0], path)
        path.chmod(0o666)
    reason = barred(unwritable_folder)
    with pytest.raises(DatabaseError) as caught:
        Store.open(path)
    assert reason in str(caught.value) and "copy it, with the -wal" in str(caught.value)


def test_a_transaction_that_was_cut_short_there_is_one_error_with_the_way_out(
    tmp_path: Path, unwritable_folder: Path
) -> None:
    with as_owner(unwritable_folder):
        path = tmp_path / "t.db"
        with Store.open(path) as store:
            populate(store)
        leave_journal(path, unwritable_folder / "t.db")
    with pytest.raises(DatabaseError) as caught:
        Store.open(unwritable_folder / "t.db", read_only=True)
    text = str(caught.value)
    assert "was cut short" in text and "copy it, with the -wal or -journal next to it" in text


def test_a_writer_that_comes_later_is_seen(parts: list[Path], unwritable_folder: Path) -> None:
    path = unwritable_folder / "t.db"
    with as_owner(unwritable_folder):
        shutil.copy(parts[0], path)
    with Store.open(path, read_only=True) as reader:
        assert queries.count_trials(reader, KEY) == {"ok": _IN_FILE}
        with as_owner(unwritable_folder), Store.open(path) as writer:
            writer.add([trial(500)])
        assert queries.count_trials(reader, KEY) == {"ok": _IN_FILE + 1}
