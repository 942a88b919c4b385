"""What a run leaves behind is ended, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tunefarm.measure.sandbox.reaper import TAG_VARIABLE, Reaper, holders, run_processes

_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], env={}, stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.fixture
def tagged() -> Iterator[tuple[str, subprocess.Popen[str], int]]:
    """A tag, a process that has it, and the id of its child, which has not."""
    tag = f"test{os.getpid()}"
    environment = {**os.environ, TAG_VARIABLE: tag}
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield tag, process, int(process.stdout.readline())
        process.kill()


def exists(process: int) -> bool:
    with suppress(OSError):
        stat = Path(f"/proc/{process}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    return False


def test_run_is_the_tagged_process_and_its_descendants(
    tagged: tuple[str, subprocess.Popen[str], int],
) -> None:
    tag, process, child = tagged
    assert {found.id for found in run_processes(tag)} == {process.pid, child}
    assert run_processes("another") == set()


def test_noted_descendant_is_ended_although_its_parent_is_gone(
    tagged: tuple[str, subprocess.Popen[str], int], tmp_path: Path
) -> None:
    tag, process, child = tagged
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    reaper = Reaper(tag, str(scratch))
    reaper.note()
    reaper.close()
    assert not exists(process.pid) and not exists(child)
    assert not scratch.exists()


def test_processes_of_other_runs_are_left_alone(
    tagged: tuple[str, subprocess.Popen[str], int], tmp_path: Path
) -> None:
    _, process, child = tagged
    reaper = Reaper("another", str(tmp_path / "scratch"))
    reaper.note()
    reaper.close()
    assert process.poll() is None and exists(child)


def test_a_process_without_a_tag_that_has_a_file_of_the_run_open_is_ended(tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "run2"
    for path in (folder, other):
        path.mkdir()
        (path / "log").touch()
    command = [sys.executable, "-c", "input()"]
    with (
        (folder / "log").open() as log,
        (other / "log").open() as log_of_another,
        subprocess.Popen(command, env={}, stdin=subprocess.PIPE, stderr=log) as ours,
        subprocess.Popen(command, env={}, stdin=subprocess.PIPE, stderr=log_of_another) as theirs,
    ):
        log.close()
        assert {found.id for found in holders([str(folder)])} == {ours.pid}
        Reaper("no tag", str(folder)).close()
        assert ours.wait(60) < 0 and theirs.poll() is None
        theirs.kill()
