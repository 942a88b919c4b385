"""What another process is asked: it may crash, hang or leave something behind."""

from __future__ import annotations

import time

import pytest

from tunefarm.measure.sandbox.isolated import ask_isolated

MODULE = "tests.measure.sandbox.misbehaving"


@pytest.mark.parametrize(
    ("how", "failure"),
    [
        ("well", ""),
        ("abort", "it ended with SIGABRT"),
        ("raise", "it ended with code 1: RuntimeError: of its own"),
    ],
)
def test_an_answer_says_how_the_process_ended(how: str, failure: str) -> None:
    answer = ask_isolated(MODULE, [how], 60.0)
    assert answer.output == b"said\n"
    assert answer.failure == failure


def test_a_process_that_is_late_is_ended() -> None:
    answer = ask_isolated(MODULE, ["hang"], 1.0)
    assert answer.failure.startswith("no answer within 1 s")


def test_what_a_process_leaves_behind_is_not_waited_for() -> None:
    begin = time.monotonic()
    assert ask_isolated(MODULE, ["leave"], 60.0).failure == ""
    assert time.monotonic() - begin < 19.0  # the other one sleeps for longer


def test_a_module_that_is_not_there_is_a_failure() -> None:
    assert "No module named" in ask_isolated("tests.no_such_module", [], 60.0).failure
