"""The campaign finds what is planted, counts the rest, and survives whatever an attempt does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.attack.attack import Attack, Outcome
from tests.attack.campaign import Finding, run_campaign
from tests.attack.forked import End, run_forked


class _BreaksAtSeven(Attack):
    name = "seven"

    def attempt(self, seed: int) -> Outcome:
        (self.folder / "left over").write_text("")
        if seed == 9:
            raise RuntimeError("escaped")
        return Outcome("wrong", broke=True, detail="7") if seed == 7 else Outcome("held")

    def minimise(self, seed: int, outcome: Outcome) -> str:
        return f"smaller than {seed}"


def test_campaign_reports_each_finding_with_its_seed_and_repro(tmp_path: Path) -> None:
    found: list[Finding] = []
    attack = _BreaksAtSeven(tmp_path)
    tallies = run_campaign([attack], seed=5, seconds=60, attempts=6, report=found.append)
    assert tallies["seven"].counts == {"held": 4, "wrong": 1, "traceback": 1}
    assert [finding.seed for finding in found] == [7, 9]
    assert "--seed 7 --attempts 1" in str(found[0])
    assert "smaller than 7" in str(found[0])
    assert "RuntimeError: escaped" in str(found[1])
    assert not list(tmp_path.iterdir())


def test_campaign_without_time_makes_one_attempt_of_each(tmp_path: Path) -> None:
    tallies = run_campaign([_BreaksAtSeven(tmp_path)], seed=7, seconds=0, report=lambda _: None)
    assert tallies["seven"].attempts == 1


def test_fork_returns_what_the_function_returns() -> None:
    assert run_forked(lambda: "x" * 200_000).text == "x" * 200_000


def test_fork_that_raises_gives_its_traceback() -> None:
    def fails() -> str:
        raise ValueError("planted")

    ended = run_forked(fails)
    assert ended.end is End.RAISED
    assert "ValueError: planted" in ended.text


def test_fork_that_crashes_gives_its_signal() -> None:
    def crashes() -> str:
        os.kill(os.getpid(), signal.SIGSEGV)
        return ""

    assert run_forked(crashes).text == "SIGSEGV"


def test_fork_that_hangs_is_killed_with_what_it_started() -> None:
    start = time.monotonic()
    ended = run_forked(lambda: str(os.system("sleep 600")), seconds=0.5)
    assert ended.end is End.HUNG
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("mebibytes", [64, 4096])
def test_fork_may_take_its_memory_and_no_more(mebibytes: int) -> None:
    def takes() -> str:
        return str(np.ones(mebibytes << 20, np.uint8).size)

    ended = run_forked(takes, memory_bytes=1 << 30)
    assert ended.end is (End.RETURNED if mebibytes == 64 else End.OUT_OF_MEMORY)
