"""The command of a job: what is kept of it, what is left of its limits, what goes on with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tunefarm.db.records import JobRecord
from tunefarm.tuner.records.job_command import JobCommand

COMMAND = JobCommand(("--model", "/m.onnx", "--minutes", "9", "--db", "/t.db"), "/work", 100.0, 9.0)


def job(settings: Any, *, updated: float = 160.0, finished: float | None = None) -> JobRecord:
    return JobRecord("abc", "m.onnx", "h", settings, "lost", 100.0, updated, finished, {})


def test_a_command_is_read_as_it_was_kept() -> None:
    settings = COMMAND.kept_in({"search": {"seed": 1}})
    assert settings["search"] == {"seed": 1}
    assert JobCommand.of(job(settings)) == COMMAND
    unlimited = replace(COMMAND, minutes=None)
    assert JobCommand.of(job(unlimited.kept_in({}))) == unlimited


@pytest.mark.parametrize(
    "settings",
    [None, {}, [], {"command": 3}, {"command": {}}, {"command": {"arguments": ["--model", 3]}}],
)
def test_what_is_no_command_is_none(settings: Any) -> None:
    assert JobCommand.of(job(settings)) is None


@pytest.mark.parametrize(
    ("updated", "finished", "left"),
    [(160.0, None, 8.0), (160.0, 220.0, 7.0), (220.0, 160.0, 7.0), (9999.0, None, 0.0)],
)
def test_minutes_are_counted_to_the_last_sign_of_life(
    updated: float, finished: float | None, left: float
) -> None:
    assert COMMAND.minutes_left(job({}, updated=updated, finished=finished)) == left


def test_options_that_are_no_more_are_left_out() -> None:
    former = replace(
        COMMAND,
        arguments=("--trace", "/t.json", "--metrics", "/m", "--plan", "rules", "--seed", "1"),
    )
    assert former.again(database="/d.db") == ["--seed", "1", "--db", "/d.db"]


def test_limits_that_are_given_stand_for_the_former_ones() -> None:
    again = COMMAND.again(database="/other.db", minutes=2.5, trials=30)
    assert again == [
        "--model",
        "/m.onnx",
        "--db",
        "/other.db",
        "--minutes",
        "2.5",
        "--trials",
        "30",
    ]
    kept = COMMAND.again(database="/other.db")
    assert kept == ["--model", "/m.onnx", "--minutes", "9", "--db", "/other.db"]
