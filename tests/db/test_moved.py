"""The database is renamed, deleted or replaced under a running job: nothing recorded is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.db.examples import populate, trial
from tunefarm.configs.errors import DatabaseMovedError, DatabaseUnavailableError
from tunefarm.configs.files import new_file
from tunefarm.db import queries, sqlite_file
from tunefarm.db.check import check
from tunefarm.db.export import merge_records
from tunefarm.db.store import Store


@pytest.fixture(autouse=True)
def rollback_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever SQLite is linked; a write-ahead log has a test of its own."""
    monkeypatch.setattr(sqlite_file, "_WAL_IS_SAFE", False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder / "tuning.db"


class Said:
    """The patience of a job: what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, error: DatabaseUnavailableError) -> bool:
        self.lines.append(error.message)
        return isinstance(error, DatabaseMovedError) and len(self.lines) < 10


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def store(path: Path, said: Said) -> Iterator[Store]:
    """Of a job that has recorded two trials."""
    with Store.open(path) as store:
        store.patience = said
        populate(store)
        store.start_job("net", "hash", {})
        store.add([trial(1)])
        store.add([trial(2)])
        yield store


def trials(path: Path | str) -> int:
    """How many a sound database has."""
    with Store.open(path, create=False) as store:
        assert check(store) == []
        return sum(queries.count_trials(store).values())


def renamed(path: Path) -> Path:
    return path.rename(path.with_name("old.db"))


def moved_elsewhere(path: Path) -> Path:
    (path.parent.parent / "elsewhere").mkdir()
    return path.rename(path.parent.parent / "elsewhere" / "tuning.db")


def folder_renamed(path: Path) -> Path:
    return path.parent.rename(path.parent.with_name("archive")) / path.name


def other_in_its_place(path: Path) -> Path:
    other = renamed(path)
    with Store.open(path) as store:
        populate(store)
    return other


def folder_in_its_place(path: Path) -> Path:
    other = renamed(path)
    path.mkdir()
    return other


def link_in_its_place(path: Path) -> Path:
    other = renamed(path)
    path.symlink_to("nowhere.db")
    return other


RENAMES = [
    renamed,
    moved_elsewhere,
    folder_renamed,
    other_in_its_place,
    folder_in_its_place,
    link_in_its_place,
]


@pytest.mark.parametrize("rename", RENAMES)
def test_a_job_goes_on_in_the_file_that_was_renamed(
    rename: Callable[[Path], Path], store: Store, path: Path, said: Said
) -> None:
    there = rename(path)
    names = sorted(each.name for each in path.parent.iterdir()) if path.parent.exists() else None
    assert store.add([trial(3)]) == 1
    store.finish_job(queries.jobs(store)[0].id, "finished")
    assert Path(store.name) == there and store.moved == store.name and not store.lost
    (line,) = said.lines
    assert line.endswith(f"was renamed while it was in use: the job goes on in {there}")
    store.close()
    assert trials(there) == 3
    if names is not None:  # nothing was left under the former name
        assert sorted(each.name for each in path.parent.iterdir()) == names


def deleted(path: Path) -> None:
    for each in path.parent.glob("tuning.db*"):
        each.unlink()


def folder_deleted(path: Path) -> None:
    shutil.rmtree(path.parent)


def replaced(path: Path) -> None:
    with Store.open(path.with_name("other.db")) as other:
        populate(other)
    os.replace(path.with_name("other.db"), path)


def replaced_by_a_folder(path: Path) -> None:
    deleted(path)
    path.mkdir()


def replaced_by_a_link(path: Path) -> None:
    replaced(path)
    path.rename(path.with_name("other.db"))
    path.symlink_to("other.db")


@pytest.mark.parametrize(
    ("lose", "again"),
    [
        (deleted, "mv "),
        (folder_deleted, "mv "),
        (replaced, "tune db merge "),
        (replaced_by_a_folder, "tune db merge "),
        (replaced_by_a_link, "tune db merge "),
    ],
)
def test_a_job_goes_on_in_a_copy_of_what_was_deleted(
    lose: Callable[[Path], None], again: str, store: Store, path: Path, said: Said
) -> None:
    lose(path)
    assert store.add([trial(3)]) == 1
    store.finish_job(queries.jobs(store)[0].id, "finished")
    copy = Path(store.name)
    assert copy.name == "tuning.db.saved" and copy.parent in path.parents
    (line,) = said.lines
    assert f"its records are saved in {copy}; to have them back: {again}" in line
    assert line.startswith(store.lost) and store.moved == store.name
    store.close()
    assert trials(copy) == 3


@pytest.mark.parametrize("lose", [renamed, folder_renamed, deleted, folder_deleted])
def test_a_write_ahead_log_is_lost_no_more_than_the_file(
    lose: Callable[[Path], Path | None],
    path: Path,
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sqlite_file, "_WAL_IS_SAFE", True)
    with Store.open(path) as store:
        store.patience = said
        populate(store)
        store.add([trial(1), trial(2)])
        assert Path(f"{path}-wal").stat().st_size
        there = lose(path)
        store.add([trial(3)])
        assert len(said.lines) == 1 and there in (None, Path(store.name))
    assert trials(store.name) == 3


def test_what_was_saved_can_be_merged_into_what_replaced_it(store: Store, path: Path) -> None:
    replaced(path)
    store.add([trial(3)])
    store.close()
    with Store.open(store.name, read_only=True) as copy, Store.open(path) as new:
        assert merge_records(new, copy).trials == 3
    assert trials(path) == 3


def test_a_copy_that_is_renamed_as_its_line_says_is_followed(store: Store, path: Path) -> None:
    deleted(path)
    store.add([trial(3)])
    Path(store.name).rename(path)
    store.add([trial(4)])
    assert Path(store.name) == path and store.lost == ""
    store.close()
    assert trials(path) == 4


def test_a_copy_is_as_private_as_the_file_was(store: Store, path: Path) -> None:
    path.chmod(0o600)
    deleted(path)
    store.add([trial(3)])
    assert Path(store.name).stat().st_mode & 0o777 == 0o600


def test_a_copy_that_cannot_be_saved_is_waited_for(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder can be written: the job pauses, and the records are held until one can."""
    said: list[str] = []

    def patience(error: DatabaseUnavailableError) -> bool:
        said.append(error.message)
        monkeypatch.setattr(sqlite_file, "new_file", new_file)
        return True

    def no_file(*_: object) -> Path:
        raise OSError(28, os.strerror(28))

    store.patience = patience
    monkeypatch.setattr(sqlite_file, "new_file", no_file)
    deleted(path)
    assert store.add([trial(3)]) == 1
    assert "its records cannot be saved in " in said[0] and "No space left" in said[0]
    assert len(said) == 2
    copy = store.name
    store.close()
    assert trials(copy) == 3


def test_who_has_no_patience_is_told_where_the_file_is(path: Path, store: Store) -> None:
    with Store.open(path, read_only=True) as reader, Store.open(path) as other:
        there = renamed(path)
        for each in (reader, other):
            with pytest.raises(DatabaseMovedError, match=f"was renamed to {there}") as caught:
                queries.jobs(each)
            assert caught.value.hint == f"its records are there: --db {there}"
        with pytest.raises(DatabaseMovedError, match="was renamed"):
            populate(other)
        there.unlink()
        with pytest.raises(DatabaseMovedError, match="was deleted while it was in use"):
            queries.jobs(reader)
    assert not path.exists()


def test_a_deleted_journal_or_another_folder_changes_nothing(
    store: Store, path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent.parent)
    Path(f"{path}-journal").unlink(missing_ok=True)
    assert store.add([trial(3)]) == 1
    assert said.lines == [] and store.moved == ""
