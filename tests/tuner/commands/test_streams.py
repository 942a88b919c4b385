"""Standard streams that are closed, full or not read: a quiet end, or one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunefarm.db.store import Store

HELP, LIST = "--help", "db list --db s.db"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a database."""
    found = tmp_path_factory.mktemp("streams")
    Store.open(found / "s.db").close()
    return found


def run(folder: Path, arguments: str, redirection: str) -> tuple[int, str]:
    """Exit code and stderr of a command with its streams redirected by the shell."""
    (folder / "tmp").mkdir(exist_ok=True)
    ran = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'exec "$0" -m tunefarm.tuner.commands.entry {arguments} {redirection}',
            sys.executable,
        ],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    assert not list((folder / "tmp").iterdir())
    return ran.returncode, ran.stderr


@pytest.mark.parametrize("arguments", [HELP, LIST])
@pytest.mark.parametrize(
    ("redirection", "reason"),
    [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")],
)
def test_results_that_cannot_be_written_are_an_error(
    folder: Path, arguments: str, redirection: str, reason: str
) -> None:
    assert run(folder, arguments, redirection) == (
        1,
        f"error: cannot write to stdout: {reason}\n",
    )


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&-", "<&- 2>&-"])
def test_other_streams_do_not_matter(folder: Path, redirection: str) -> None:
    before = (folder / "s.db").read_bytes()
    assert run(folder, LIST, redirection) == (0, "")
    assert (folder / "s.db").read_bytes() == before


def test_all_streams_closed_is_an_error_without_a_word(folder: Path) -> None:
    assert run(folder, LIST, "<&- >&- 2>&-") == (1, "")


def test_a_pipe_that_nobody_reads_ends_quietly(folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        [sys.executable, "-m", "tunefarm.tuner.commands.entry", *LIST.split()],
        cwd=folder,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(writing)
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (1, "")
