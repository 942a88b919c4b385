"""The attack covers every option of every command, and finds what is not refused as it should."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attack.campaign import empty
from tests.attack.invocations import Invocation, InvocationsAttack, commands, draw, faults


def fine(line: list[str]) -> int:
    return 0


def two_lines(line: list[str]) -> int:
    print("error: no\nand more", file=sys.stderr)
    return 1


def a_bug(line: list[str]) -> int:
    print("error: unexpected ZeroDivisionError", file=sys.stderr)
    return 1


def writes(line: list[str]) -> int:
    Path("s.db").write_text("gone")
    print("error: no", file=sys.stderr)
    return 1


def leaves(line: list[str]) -> int:
    Path("left").touch()
    print("error: no", file=sys.stderr)
    return 1


def crashes(line: list[str]) -> int:
    raise SystemExit(3)


def refuses(line: list[str]) -> int:
    print("error: no", file=sys.stderr)
    return 2


def test_every_option_of_every_command_has_faults() -> None:
    found = commands()
    assert {"tune", "build", "run", "db list", "db upgrade"} <= set(found)
    for command, parameters in found.items():
        assert parameters, command
        for parameter in parameters:
            if not getattr(parameter, "is_flag", False):
                assert list(faults(command, parameter)), (command, parameter.name)


def test_draws_reach_every_command_and_option() -> None:
    rng = random.Random(0)
    text = "\n".join(" ".join(draw(rng).arguments) for _ in range(9000))
    for command, parameters in commands().items():
        for parameter in parameters:
            assert parameter.opts[0] in text or not parameter.opts[0].startswith("-"), command


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> InvocationsAttack:
    return InvocationsAttack(tmp_path_factory.mktemp("invocations"))


@pytest.fixture
def attack(made: InvocationsAttack) -> Iterator[InvocationsAttack]:
    run = made.run
    yield made
    made.run = run
    empty(made.folder)


@pytest.mark.parametrize("run", [fine, two_lines, a_bug, writes, leaves, crashes])
def test_what_is_not_refused_as_it_should_is_found(
    attack: InvocationsAttack, run: Callable[[list[str]], int]
) -> None:
    attack.run = run
    assert attack.invoke(Invocation(("build",))).broke


def test_a_finding_is_shown_without_what_it_does_not_need(attack: InvocationsAttack) -> None:
    def fails_for_a_model(line: list[str]) -> int:
        if any(argument.startswith("--model") for argument in line):
            return two_lines(line)
        return refuses(line)

    attack.run = fails_for_a_model
    for seed in range(100):
        outcome = attack.invoke(draw(random.Random(seed)))
        if outcome.broke and outcome.detail.count("--") > 2:
            break
        empty(attack.folder)
    minimised = attack.minimise(seed, outcome)
    assert "--model" in minimised
    assert minimised.count("--") == 1


def test_a_refusal_is_none(attack: InvocationsAttack) -> None:
    attack.run = refuses
    outcome = attack.invoke(Invocation(("build",)))
    assert not outcome.broke, outcome.detail


@pytest.mark.parametrize(
    "invocation",
    [
        Invocation(("build", "--model", "m.onnx", "--db", "s.db", "--output", "hard")),
        Invocation(("db", "import", "x" * 5000)),
        Invocation(("inspect", "--model", "m.onnx", "--stage", "graph", "--kernel", "x")),
        Invocation(("db", "list", "--db", "loop")),
        Invocation(("db", "list", "--db", "s.db"), stdout="full"),
        Invocation(("--model", "m.onnx"), {"TUNEFARM_SEARCH__TRIAL": "1"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("real", [False, True])
def test_wrong_invocations_are_refused(
    attack: InvocationsAttack, invocation: Invocation, real: bool
) -> None:
    outcome = attack.invoke(invocation, real=real)
    assert not outcome.broke, outcome.detail
