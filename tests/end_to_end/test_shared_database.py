"""Two drivers tune one model on one database, and one of them is killed: nothing is measured twice,
everything is done, and the next job says that the killed one was lost.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.records import TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.tuner.records.trials import is_confirmed

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240.0
TRIALS = 24


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    model, config = tmp_path / "tiny.onnx", tmp_path / "shared.toml"
    onnx.save(tiny_model(), model)
    text = (ROOT / "configs" / "ci.toml").read_text()
    config.write_text(text.replace("trials_per_task = 6", "trials_per_task = 400"))
    database = str(tmp_path / "tuning.db")
    common = ["--model", str(model), "--db", database, "--config", str(config)]
    return [*common, "--trials", str(TRIALS)]


def driver(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tunefarm.tuner.commands.entry", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def searched(database: Path) -> list[TrialRecord]:
    """The trials of the search that are recorded so far."""
    try:
        with Store.open(database, create=False, read_only=True) as store:
            return [r for r in queries.iterate_trials(store) if not is_confirmed(r)]
    except DatabaseError:
        return []  # it is not there yet


def wait_for(database: Path, count: int, *processes: subprocess.Popen[str]) -> None:
    end = time.monotonic() + SECONDS
    while len(searched(database)) < count:
        assert time.monotonic() < end
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)


def assert_measured_again_on_purpose(trials: list[TrialRecord]) -> None:
    """What may be the best is measured again, but by another driver only after it was recorded, and
    not often. (Its own tries what scattered once more before that is in the database.)"""
    last: dict[tuple[TaskKey, str], TrialRecord] = {}
    again = 0
    for trial in trials:
        schedule = trial.key, trial.schedule_hash
        began = trial.created - trial.build_seconds - trial.check_seconds - trial.run_seconds
        if schedule in last:
            former = last[schedule]
            is_own = former.job == trial.job
            assert is_own or began > former.created, f"{trial.request_id} was under way elsewhere"
            again += 1
        last[schedule] = trial
    assert again <= len(trials) / 4


@pytest.mark.slow
@pytest.mark.nightly
def test_two_drivers_and_a_killed_one_measure_no_candidate_twice(
    arguments: list[str], tmp_path: Path
) -> None:
    database = tmp_path / "tuning.db"
    killed = driver(arguments)
    wait_for(database, 4, killed)
    others = [driver(arguments), driver(arguments)]
    killed.kill()
    killed.communicate(timeout=SECONDS)
    said = [process.communicate(timeout=SECONDS) for process in others]
    assert [process.returncode for process in others] == [0, 0], said
    lost = [err for _, err in said if f"process {killed.pid} on " in err]
    assert len(lost) == 1
    assert "was lost" in lost[0] and "goes on from what it recorded" in lost[0]
    trials = searched(database)
    assert len(trials) >= TRIALS and len({trial.job for trial in trials}) >= 2
    assert_measured_again_on_purpose(trials)
    with Store.open(database, read_only=True) as store:
        assert check(store) == []
        assert sorted(job.state for job in queries.jobs(store)) == ["finished", "finished", "lost"]
