"""Nothing is left of a process: by itself when it ends, by the next one when it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tunefarm.configs import remains
from tunefarm.configs.remains import leave, make_folder, on_leaving, remove_folders_of_the_dead


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(remains, "_left", set[int]())
    return tmp_path


def test_folders_of_a_process_that_is_gone_are_removed(folder: Path) -> None:
    script = "from tunefarm.configs.remains import make_folder; print(make_folder('kind'))"
    environment = {**os.environ, "TMPDIR": str(folder)}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    left = Path(ran.stdout.strip())
    assert left.is_dir()
    mine = make_folder("kind")
    assert not left.exists() and mine.is_dir()


def test_a_process_with_the_same_id_that_started_at_another_time_is_another(folder: Path) -> None:
    mine = make_folder("kind")
    *start, started, number = mine.name.split("-")
    former = mine.with_name("-".join([*start, f"{int(started, 16) ^ 1:x}", number]))
    former.mkdir()
    remove_folders_of_the_dead()
    assert mine.is_dir() and not former.exists()


@pytest.mark.parametrize("name", ["tunefarm-x", "tunefarm-a-b-c-d-e", "other-kind-1-ffffff-1-0"])
def test_what_is_not_ours_stays(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    remove_folders_of_the_dead()
    assert (folder / name).is_dir()


def test_another_process_namespace_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(remains, "_namespace", lambda: "fffff")
        other = make_folder("kind")
    remove_folders_of_the_dead()
    assert other.is_dir()


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
