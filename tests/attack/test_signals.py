"""The attack finds commands that end badly, and none of ours."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from tests.attack.campaign import empty
from tests.attack.signals import Shot, SignalsAttack

BEGIN = """
import os, signal, subprocess, sys, tempfile, time
def end(number, frame):
    {}
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, end)
{}
time.sleep(600)
"""
CLEAN = 'print("interrupted", file=sys.stderr); sys.exit(128 + number)'
FAULTS = {
    "exit code 1": ('print("interrupted", file=sys.stderr); sys.exit(1)', ""),
    "0 lines": ("sys.exit(128 + number)", ""),
    "traceback": ("raise RuntimeError", ""),
    "file ": (CLEAN, "tempfile.mkdtemp()"),
    "process sleep": (CLEAN, 'subprocess.Popen(["sleep", "600"], start_new_session=True)'),
    "database:": (CLEAN, 'open("s.db", "wb").write(b"x" * 4096)'),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SignalsAttack:
    return SignalsAttack(tmp_path_factory.mktemp("signals"))


@pytest.fixture
def attack(made: SignalsAttack) -> Iterator[SignalsAttack]:
    arguments = made.arguments
    yield made
    made.arguments = arguments
    empty(made.folder)


@pytest.mark.parametrize("problem", FAULTS)
def test_a_command_that_ends_badly_is_found(attack: SignalsAttack, problem: str) -> None:
    attack.arguments = (sys.executable, "-c", BEGIN.format(*FAULTS[problem]))
    outcome = attack.shoot(Shot("local", signal.SIGTERM, 0.2, to_group=False))
    assert outcome.broke and problem in outcome.detail


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("ray", signal.SIGTERM),
        ("ray", signal.SIGKILL),
        ("local", signal.SIGHUP),
        ("emit", signal.SIGINT),
    ],
)
def test_commands_end_well(attack: SignalsAttack, command: str, number: signal.Signals) -> None:
    outcome = attack.shoot(Shot(command, number, 1.0, to_group=True))
    assert not outcome.broke, outcome.detail
