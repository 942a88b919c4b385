"""What the doctor says of databases, caches and temporary folders in every state."""

from __future__ import annotations

import gzip
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from tunefarm.db.store import Store
from tunefarm.tuner.doctor import checks
from tunefarm.tuner.doctor.checks import check_cache, check_database, check_temporary, file_system
from tunefarm.tuner.doctor.checkup import Finding, Grade, Question

_NOBODY = 65534


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "_LOCKED_SECONDS", 0.05)


def told(findings: list[Finding], grade: Grade) -> str:
    """The texts and advice of this grade."""
    return " ".join(f"{f.text} {f.advice}" for f in findings if f.grade is grade)


def test_a_database_that_is_asked_for_and_missing_is_a_problem() -> None:
    assert "there is no none.db" in told(check_database(Question(db="none.db")), Grade.PROBLEM)
    (finding,) = check_database(Question())
    assert finding.grade is Grade.OK and "tuning.db is not there yet" in finding.text
    assert os.listdir() == []


def test_a_sound_database_is_read_as_a_whole() -> None:
    Store.open("t.db").close()
    (finding,) = check_database(Question(db="t.db"))
    assert finding.grade is Grade.OK and "every row is intact" in finding.text


def test_an_older_schema_names_the_upgrade_and_nothing_is_changed(repository: Path) -> None:
    old = gzip.decompress((repository / "tests/data/schema_0006.db.gz").read_bytes())
    Path("old.db").write_bytes(old)
    said = told(check_database(Question(db="old.db")), Grade.WARNING)
    assert "0006" in said and "tune db upgrade --db old.db" in said
    assert Path("old.db").read_bytes() == old


@pytest.mark.parametrize("content", [b"a text file\n" * 100, b"SQLite format 3\0" + bytes(4096)])
def test_another_file_is_a_problem(content: bytes) -> None:
    Path("t.db").write_bytes(content)
    assert "t.db" in told(check_database(Question(db="t.db")), Grade.PROBLEM)


def test_damage_is_a_problem() -> None:
    with Store.open("t.db") as store:
        store.start_job("model", "hash", {})
    with sqlite3.connect("t.db") as connection:
        connection.execute("UPDATE jobs SET model_name = 'other'")
    connection.close()
    assert "damaged" in told(check_database(Question(db="t.db")), Grade.PROBLEM)


def test_a_lock_is_noticed() -> None:
    Store.open("t.db").close()
    holder = sqlite3.connect("t.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert "another process" in told(check_database(Question(db="t.db")), Grade.WARNING)
    holder.close()
    assert told(check_database(Question(db="t.db")), Grade.WARNING) == ""


def test_a_database_that_can_only_be_read_is_said_to_be(unwritable_folder: Path) -> None:
    """It was put there by somebody else."""
    path = unwritable_folder / "t.db"
    is_root = os.getuid() == 0
    os.seteuid(os.getuid())
    unwritable_folder.chmod(0o755)
    Store.open(path).close()
    unwritable_folder.chmod(0o555)
    path.chmod(0o444)
    os.seteuid(_NOBODY if is_root else os.getuid())
    assert "can only be read" in told(check_database(Question(db=str(path))), Grade.WARNING)


def test_a_password_is_not_printed() -> None:
    url = "postgresql://tuner:secret@127.0.0.1:9/none"
    found = check_database(Question(db=url))
    assert found[0].grade is Grade.PROBLEM and "secret" not in str(found)


def test_the_kind_of_file_system_is_that_of_the_longest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/sda / ext4 rw 0 0\nserver:/home /home/a\\040b nfs4 rw 0 0\nodd\n")
    assert file_system(Path("/home/a b/tuning.db"), mounts) == "nfs4"
    assert file_system(Path("/home/other/tuning.db"), mounts) == "ext4"
    assert file_system(Path("/home"), tmp_path / "none") == ""


def test_a_cache_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFARM_CACHE__FOLDER", str(tmp_path / "cache"))
    assert told(check_cache(Question()), Grade.OK).startswith(f"{tmp_path}/cache, which")
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "entry").write_bytes(bytes(2048))
    assert "2 KiB in 1 files" in told(check_cache(Question()), Grade.OK)
    (tmp_path / "cache").chmod(0o777)
    assert "chmod go-w" in told(check_cache(Question()), Grade.WARNING)
    monkeypatch.setenv("TUNEFARM_CACHE__ENABLED", "false")
    assert "none" in told(check_cache(Question()), Grade.OK)


def test_a_folder_for_temporary_files_that_cannot_be_written_is_a_problem(
    unwritable_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(unwritable_folder))
    assert "TMPDIR" in told(check_temporary(Question()), Grade.PROBLEM)
