"""A job that runs: seen, stopped, killed and resumed by other processes, until it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.test_cli import CommandLine
from tests.end_to_end.tiny_model import tiny_model
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.records import JobRecord
from tunefarm.db.store import Store
from tunefarm.tuner.reports.job_state import JobState

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240.0
SETTINGS = """
[search]
trials_per_task = 400
batch_size = 3
patience = 400
minutes = 60
[search.cost_model]
rounds = 10
pool = 64
[measure]
runner = "local"
overlap = "always"
min_sample_seconds = 0.001
unstable_above = 1.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a job is begun, with relative names."""
    folder = tmp_path / "work"
    folder.mkdir()
    onnx.save(tiny_model(), folder / "tiny.onnx")
    (folder / "slow.toml").write_text(SETTINGS)
    return folder


@pytest.fixture
def tune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Commands typed in another folder than the job's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return CommandLine(tmp_path, capsys)


def _take_ctrl_c() -> None:
    """Ctrl-C ends the process, also where this one was started with it ignored (nohup, &)."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(folder: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command as a process, which is gone in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tunefarm.tuner.commands.entry", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_take_ctrl_c,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def jobs(database: Path | str) -> list[JobRecord]:
    try:
        with Store.open(database, create=False, read_only=True) as store:
            return queries.jobs(store)
    except DatabaseError:
        return []  # it is not there yet


def wait_for_trials(database: Path, count: int, process: subprocess.Popen[str]) -> str:
    """Wait until the newest job has measured so many; its id."""
    end = time.monotonic() + SECONDS
    while True:
        found = jobs(database)[:1]
        if found and found[0].state == "running" and trials_of(database, found[0].id) >= count:
            return found[0].id
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.25)  # polls what another process writes


def wait_for_search(database: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the newest job has chosen its plan, and searches schedules."""
    end = time.monotonic() + SECONDS
    while JobState.of(jobs(database)[0].progress).phase != "searching":
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.25)  # polls what another process writes


def trials_of(database: Path, job: str) -> int:
    with Store.open(database, create=False, read_only=True) as store:
        return sum(record.job == job for record in queries.iterate_trials(store))


@pytest.mark.nightly
def test_a_job_is_stopped_killed_and_resumed_from_elsewhere(
    tune: CommandLine, folder: Path
) -> None:
    db = folder / "night.db"
    typed = "--model", "tiny.onnx", "--db", "night.db", "--config", "slow.toml", "--trials", "5000"
    with started(folder, *typed) as process:
        first = wait_for_trials(db, 4, process)
        wait_for_search(db, process)
        (told,) = json.loads(tune("status", "--db", db, "--json", "-").out)
        assert told["job"] == first and told["state"] == "running"
        assert 0 < told["seconds_left"] <= 3600
        assert "is running" in tune("resume", first, "--db", db).err
        with started(folder.parent, "watch", "--db", db) as watching:
            assert watching.stderr is not None
            assert first[:8] in watching.stderr.readline()
            stopped = tune("stop", first[:6], "--db", db)
            _, errors = process.communicate(timeout=SECONDS)
            watched, _ = watching.communicate(timeout=SECONDS)
    assert watching.returncode == 0
    assert f"job {first[:8]} (tiny.onnx): interrupted after" in watched and "conv" in watched
    assert process.returncode == 130, errors
    assert stopped.code == 0 and "interrupted" in stopped.out and "tune resume" in stopped.out
    assert f"process {os.getpid()} on " in errors and "asks this job to stop" in errors
    assert "Traceback" not in errors
    (job,) = jobs(db)
    assert job.state == "interrupted" and JobState.of(job.progress).trials >= 4
    assert "has already ended: interrupted" in tune.refuses("stop", first, "--db", db)

    with started(folder.parent, "resume", "last", "--db", db) as process:
        second = wait_for_trials(db, 2, process)
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    assert "its process has ended" in tune.refuses("stop", second, "--db", db)
    ended = tune("resume", second, "--db", db, "--minutes", "0.1")
    assert ended.code == 0, ended.err
    assert "was lost" in ended.err and "trials known from earlier runs" in ended.err
    newest, *others = jobs(db)
    assert newest.state == "finished"
    assert sorted(job.state for job in others) == ["interrupted", "lost"]
    assert newest.settings["command"]["minutes"] == 0.1
    resumed = newest.settings["command"]["arguments"]
    assert resumed[resumed.index("--model") + 1] == str(folder / "tiny.onnx")
    with Store.open(db, read_only=True) as store:
        assert check(store) == []
    assert "has finished" in tune.refuses("resume", newest.id, "--db", db)


@pytest.mark.nightly
def test_a_database_that_is_renamed_under_a_job_is_followed(
    tune: CommandLine, folder: Path
) -> None:
    db, there = folder / "night.db", folder / "old.db"
    typed = "--model", "tiny.onnx", "--db", "night.db", "--config", "slow.toml", "--trials", "5000"
    with started(folder, *typed) as process:
        job = wait_for_trials(db, 4, process)
        with started(folder, "watch", "--db", "night.db") as watching:
            assert watching.stderr is not None
            assert job[:8] in watching.stderr.readline()
            db.rename(there)
            _, watched = watching.communicate(timeout=SECONDS)
        wait_for_trials(there, trials_of(there, job) + 2, process)
        assert "no such database" in tune("status", "--db", db).err
        assert tune("stop", job, "--db", there).code == 0
        _, errors = process.communicate(timeout=SECONDS)
    assert watching.returncode == 1
    assert watched.splitlines()[-1].startswith("error: night.db was renamed to old.db while")
    assert process.returncode == 130 and "Traceback" not in errors
    assert "night.db was renamed while it was in use: the job goes on in old.db" in errors
    assert f"To continue: tune resume {job[:8]} --db old.db" in errors
    assert not db.exists()
    with Store.open(there, read_only=True) as store:
        assert check(store) == []


@pytest.mark.slow
@pytest.mark.nightly
def test_a_database_that_is_deleted_under_a_job_is_saved(tune: CommandLine, folder: Path) -> None:
    db, copy = folder / "night.db", folder / "night.db.saved"
    typed = "--model", "tiny.onnx", "--db", "night.db", "--config", "slow.toml", "--trials", "40"
    with started(folder, *typed) as process:
        job = wait_for_trials(db, 4, process)
        before = trials_of(db, job)
        db.unlink()
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1 and "Traceback" not in errors
    assert errors.splitlines()[-1] == (
        "error: night.db was deleted while it was in use: its records are saved in night.db.saved;"
        " to have them back: mv night.db.saved night.db"
    )
    assert not db.exists() and trials_of(copy, job) > before
    assert [each.state for each in jobs(copy)] == ["finished"]
    copy.rename(db)
    assert tune("status", "--db", db).code == 0


def test_a_job_that_was_begun_from_python_says_what_to_call(
    tune: CommandLine, tmp_path: Path
) -> None:
    db = tmp_path / "tuning.db"
    with Store.open(db) as store:
        store.finish_job(store.start_job("net.onnx", "h", {"search": {}}).id, "interrupted")
    line = tune.refuses("resume", "last", "--db", db)
    assert 'tunefarm.tune("net.onnx"' in line and str(db) in line


def test_a_folder_that_is_gone_is_named(tune: CommandLine, tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    command = {"arguments": ["--model", "m.onnx"], "folder": str(tmp_path / "gone"), "began": 0.0}
    with Store.open(db) as store:
        job = store.start_job("m.onnx", "h", {"command": command})
        store.finish_job(job.id, "interrupted")
    assert str(tmp_path / "gone") in tune.refuses("resume", "last", "--db", db)


@pytest.mark.parametrize("command", [("status",), ("watch",), ("stop", "last"), ("resume", "last")])
def test_without_a_database_nothing_is_made(tune: CommandLine, command: tuple[str, ...]) -> None:
    assert "none.db" in tune.refuses(*command, "--db", "none.db")
