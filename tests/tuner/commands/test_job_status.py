"""What `tune status`, `stop` and `resume` say of jobs in each state."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.tuner.commands.live_jobs import begin, state
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.db.work import asked
from tunefarm.tuner.commands.job_status import (
    end_parts,
    resuming,
    status_table,
    status_to_json,
    stop_job,
)
from tunefarm.tuner.records.job_command import JobCommand
from tunefarm.tuner.reports.gains import ModelGain


def with_command(store: Store, minutes: float | None, *, ago: float = 0.0) -> str:
    """A running job of a command that was begun so many seconds ago."""
    command = JobCommand(("--model", "/m.onnx"), "/", time.time() - ago, minutes)
    return store.start_job("net.onnx", "h", command.kept_in({})).id


def test_every_job_is_listed_with_what_is_expected(store: Store) -> None:
    older, running = begin(store, "older.onnx"), begin(store)
    store.finish_job(older, "interrupted", state(5).to_json())
    store.update_job(running, replace(state(9), at=time.time()).to_json())
    rows: list[dict[str, Any]] = status_to_json(queries.jobs(store))
    assert [row["job"] for row in rows] == [running, older]
    assert (rows[0]["state"], rows[0]["phase"]) == ("running", "searching")
    assert 0 < rows[0]["seconds_left"] <= 60.0 and rows[1]["seconds_left"] is None
    assert rows[0]["trials"] == 9 and rows[0]["expected_seconds"] == 1e-3
    assert rows[0]["speed_up"] == pytest.approx(2.0)
    json.dumps(rows, allow_nan=False)
    console = Console(width=200, record=True)
    console.print(status_table(queries.jobs(store)))
    text = console.export_text()
    assert running[:8] in text and "searching" in text and "interrupted" in text


def test_the_whole_model_stands_next_to_the_sum_of_kernels(store: Store) -> None:
    """Once it was measured, with the figures of every other output."""
    job = begin(store)
    gain = ModelGain(15e-3, 12e-3, 0.8, 0.75, 0.84)
    store.finish_job(job, "finished", replace(state(9), model=gain).to_json())
    (row,) = status_to_json(queries.jobs(store))
    assert (row["model_untuned_seconds"], row["model_tuned_seconds"]) == (15e-3, 12e-3)
    assert row["model_speed_up"] == 1.25 and row["model_gain"] == "1.25x (1.19x to 1.33x)"
    assert (row["untuned_seconds"], row["expected_seconds"]) == (2e-3, 1e-3)
    console = Console(width=240, record=True)
    console.print(status_table(queries.jobs(store)))
    text = console.export_text()
    assert all(part in text for part in ("15 ms", "12 ms", "1.25x (1.19x to 1.33x)", "1 ms"))
    (known,) = queries.jobs(store)
    _, line = end_parts(known)
    assert f"; whole model: {gain}; sum of kernels: 2 ms untuned, " in line


def test_before_anything_is_measured_nothing_is_expected(store: Store) -> None:
    begin(store)
    (row,) = status_to_json(queries.jobs(store))
    assert row["expected_seconds"] is row["speed_up"] is row["seconds_left"] is None
    assert row["model_gain"] is row["model_speed_up"] is row["model_tuned_seconds"] is None
    assert row["command"] is None


def test_a_job_that_does_not_end_in_time_is_said_to_be_asked(store: Store) -> None:
    job = begin(store)
    with pytest.raises(DatabaseError, match="asked to stop and has not ended within 0 s"):
        stop_job(store, job, 0.0, "")
    assert asked(store, job) is not None


@pytest.mark.parametrize("end", ["finished", "failed", "interrupted"])
def test_ended_jobs_cannot_be_stopped(store: Store, end: Any) -> None:
    job = begin(store)
    store.finish_job(job, end)
    with pytest.raises(DatabaseError, match=f"has already ended: {end}"):
        stop_job(store, job, 0.0, "")


def test_an_interrupted_job_gets_the_minutes_that_it_had_left(store: Store) -> None:
    job = with_command(store, 10.0, ago=240.0)
    store.finish_job(job, "interrupted")
    _, arguments = resuming(store, job, "/t.db", minutes=None, trials=None)
    assert arguments[:4] == ["--model", "/m.onnx", "--db", "/t.db"]
    assert arguments[4] == "--minutes" and float(arguments[5]) == pytest.approx(6.0, abs=0.5)
    _, arguments = resuming(store, job, "/t.db", minutes=3.0, trials=7)
    assert arguments[4:] == ["--minutes", "3", "--trials", "7"]


def test_a_job_whose_minutes_are_used_up_needs_more(store: Store) -> None:
    job = with_command(store, 1.0, ago=240.0)
    store.finish_job(job, "interrupted")
    with pytest.raises(DatabaseError, match="has used its 1 minutes"):
        resuming(store, job, "/t.db", minutes=None, trials=None)


def test_a_finished_job_goes_on_only_with_more_to_do(store: Store) -> None:
    job = with_command(store, None)
    with pytest.raises(DatabaseError, match="is running"):
        resuming(store, job, "/t.db", minutes=None, trials=None)
    store.finish_job(job, "finished")
    with pytest.raises(DatabaseError, match="has finished"):
        resuming(store, job, "/t.db", minutes=None, trials=None)
    _, arguments = resuming(store, job, "/t.db", minutes=None, trials=900)
    assert "--minutes" not in arguments and arguments[-2:] == ["--trials", "900"]
