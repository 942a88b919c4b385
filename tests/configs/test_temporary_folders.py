"""Nothing is left of a process: by itself when it ends, by the next one when it was killed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import python
from tunefarm.configs import temporary_folders
from tunefarm.configs.temporary_folders import (
    leave,
    make_folder,
    on_leaving,
    remove_folders_of_the_dead,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary_folders, "_left", set[int]())
    return tmp_path


def test_folders_of_a_process_that_is_gone_are_removed(folder: Path) -> None:
    script = (
        "from tunefarm.configs.temporary_folders import make_folder; print(make_folder('kind'))"
    )
    environment = {**os.environ, "TMPDIR": str(folder)}
    ran = python("-c", script, env=environment, check=True)
    left = Path(ran.stdout.strip())
    assert left.is_dir()
    mine = make_folder("kind")
    assert not left.exists() and mine.is_dir()


@pytest.mark.parametrize("name", ["tunefarm-x", "tunefarm-a-b-c-d-e", "other-kind-1-0"])
def test_what_is_not_ours_stays(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    remove_folders_of_the_dead()
    assert (folder / name).is_dir()


ELSEWHERE = """
import sys
from tunefarm.configs import temporary_folders

if boot := sys.argv[1]:
    temporary_folders._boot = lambda: boot
print(temporary_folders.make_folder("kind"), flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(folder: Path, boot: str = "") -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process, of another boot if one is given, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, boot],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.mark.parametrize("boot", ["", "another"], ids=["here", "elsewhere"])
def test_a_folder_is_removed_when_its_owner_here_was_killed_and_not_before(
    folder: Path, boot: str
) -> None:
    with owner(folder, boot) as (process, theirs):
        (theirs / "file").write_text("large")
        make_folder("kind")
        assert (theirs / "file").exists()
        process.kill()
        process.wait(60)
        mine = make_folder("kind")
        assert theirs.exists() == bool(boot) and mine.is_dir()


def test_without_locks_folders_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    mine = make_folder("kind")
    temporary_folders._mine.clear()
    remove_folders_of_the_dead()
    assert mine.is_dir() and not list(mine.iterdir())


def test_a_folder_that_is_not_locked_yet_is_somebodys(folder: Path) -> None:
    new = folder / "tunefarm-kind-1-0"
    new.mkdir()
    (new / ".owner.new").touch()
    remove_folders_of_the_dead()
    assert new.is_dir()


def test_the_lock_of_a_folder_that_was_removed_is_given_up(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        shutil.rmtree(make_folder("kind"))
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_leaving_ends_what_was_not_ended_and_removes_folders() -> None:
    ended: list[str] = []
    mine = make_folder("kind")
    on_leaving(lambda: ended.append("kept"))
    on_leaving(lambda: ended.append("forgotten"))()
    leave()
    leave()
    assert ended == ["kept"] and not mine.exists()


def test_a_short_name_is_found_where_the_usual_folder_has_a_long_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    mine = make_folder("ray", most_characters=40)
    assert len(str(mine)) <= 40 and mine.is_dir()
    leave()
    assert not mine.exists()


def test_threads_of_a_process_that_has_left_begin_nothing_any_more() -> None:
    ended = []
    leave()
    with pytest.raises(OSError, match="about to end"):
        make_folder("kind")
    on_leaving(lambda: ended.append("at once"))
    assert ended == ["at once"]
