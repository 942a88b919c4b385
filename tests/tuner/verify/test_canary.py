"""A new artifact is held against the one that it is to replace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.runtime.hand_kernels import COUNT, chain_spec, sealed
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.verify.canary import (
    LIMIT_SECONDS,
    Canary,
    CanaryVerdict,
    Difference,
    both,
    canary_lines,
    decides,
    different_outputs,
    judged,
)

WEIGHT = np.linspace(-1, 1, COUNT, dtype=np.float32)
UNCLEAR, SLOWER = CanaryVerdict.UNCLEAR, CanaryVerdict.SLOWER
REPEATED = 3000
"""Times that a step of the slow model runs: far beyond what noise could hide."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts: `old`, `same` (the same code), `slow` (the same outputs), `wrong`, `other`."""
    place = tmp_path_factory.mktemp("canary")
    spec = chain_spec(WEIGHT)
    first, *rest = spec.steps
    wrong = WEIGHT.copy()
    wrong[5] += 0.5
    for name, variant in {
        "old": spec,
        "same": spec,
        "slow": sealed(replace(spec, steps=(*[first] * REPEATED, *rest))),
        "wrong": chain_spec(wrong),
        "other": sealed(replace(spec, inputs=(("z", spec.inputs[0][1]),))),
    }.items():
        Executable(variant).save(place / f"{name}.tuned")
    np.savez(place / "x.npz", x=np.zeros((6, COUNT), np.float32))
    np.savez(place / "short.npz", x=np.zeros(3, np.float32))
    return place


def verify(
    folder: Path, new: str, *options: str, limit: Sequence[str] = ("--minutes", "0.05")
) -> tuple[int, dict[str, Any]]:
    out = folder / "out.json"
    arguments = ["--against", f"{folder}/old.tuned", f"{folder}/{new}.tuned", "--json", str(out)]
    code = run_command(app, ["verify", *arguments, *limit, *options])
    return code, json.loads(out.read_text())


def test_the_same_code_is_not_measured(folder: Path) -> None:
    code, found = verify(folder, "same")
    assert (code, found["verdict"], found["unchanged"], found["time"]) == (0, "passed", True, None)
    assert found["old"] == found["new"]


def test_the_limit_is_far_beyond_what_an_interval_takes(folder: Path) -> None:
    _, found = verify(folder, "same", limit=())
    assert found["limit_seconds"] == LIMIT_SECONDS == 600.0
    _, found = verify(folder, "same", limit=("--minutes", "2"))
    assert found["limit_seconds"] == 120.0
    undecided = Canary("a", "b", 1, (), Comparison(1.02, 0.99, 1.05, 99), 90.0)
    assert "after the limit of 1.5 min; give it more --minutes" in canary_lines(undecided)[0]


def test_wrong_outputs_are_named_and_nothing_is_measured(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, found = verify(folder, "wrong", "--inputs", f"{folder}/x.npz")
    assert (code, found["verdict"], found["time"], found["samples"]) == (1, "wrong", None, 6)
    (difference,) = found["differences"]
    assert difference["output"] == "y" and 0.0 < difference["error"] < 10.0
    assert "outputs differ" in capfd.readouterr().out


def test_a_slower_model_is_found(folder: Path) -> None:
    code, found = verify(folder, "slow")
    assert (code, found["verdict"], found["samples"]) == (1, "slower", 4)
    assert found["time"]["low"] > 2.0


def test_a_faster_model_passes(folder: Path) -> None:
    old, new = f"{folder}/slow.tuned", f"{folder}/old.tuned"
    assert run_command(app, ["verify", "--against", old, new, "--minutes", "0.05"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--against {0}/old.tuned {0}/other.tuned", "have not the same inputs: x f32"),
        ("--against {0}/none.tuned {0}/old.tuned", "none.tuned"),
        ("--against {0}/x.npz {0}/old.tuned", "x.npz is"),
        ("--against {0}/old.tuned {0}/old.tuned --inputs {0}/short.npz", "has the shape [3]"),
        ("--against {0}/old.tuned {0}/old.tuned --db a.db", "takes --inputs, --minutes"),
        ("--against {0}/old.tuned {0}/old.tuned --require 0.9", "takes --inputs, --minutes"),
        ("{0}/old.tuned --inputs {0}/x.npz", "--inputs needs --against"),
    ],
)
def test_what_cannot_be_compared_is_one_error(
    folder: Path, arguments: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code = run_command(app, ["verify", *arguments.format(folder).split()])
    error = capfd.readouterr().err
    assert code in (1, 2) and message in " ".join(error.split()) and "Traceback" not in error


@pytest.mark.parametrize(
    ("time", "verdict"),
    [
        (Comparison(1.0, 1.0, 1.0, 0), CanaryVerdict.PASSED),
        (Comparison(1.03, 1.02, 1.04, 99), CanaryVerdict.SLOWER),
        (Comparison(1.02, 0.99, 1.05, 99), CanaryVerdict.UNCLEAR),
        (Comparison(1.03, 1.02, 1.04, 3), CanaryVerdict.UNCLEAR),
        (Comparison(1.005, 1.001, 1.009, 99), CanaryVerdict.PASSED),
        (Comparison(1.015, 1.005, 1.025, 99), CanaryVerdict.PASSED),
        (both(Comparison(1.03, 1.02, 1.04, 99), Comparison(1.0, 0.99, 1.01, 99)), UNCLEAR),
        (both(Comparison(1.03, 1.02, 1.04, 99), Comparison(1.03, 1.015, 1.05, 99)), SLOWER),
        (Comparison(0.9, 0.8, 1.0, 99), CanaryVerdict.PASSED),
    ],
)
def test_the_interval_decides(time: Comparison, verdict: CanaryVerdict) -> None:
    assert judged(time) is verdict
    found = Canary("a", "b", 1, (), time)
    assert found.verdict is verdict
    assert canary_lines(found)[0].startswith(verdict.value)


def test_a_verdict_is_clear_at_four_standard_errors() -> None:
    def noisy(ratio: float, noise: float, placements: int) -> list[dict[int, list[float]]]:
        """Placements whose ratios lie evenly around this one, up to twice the noise away."""
        ratios = ratio * np.exp(noise * np.linspace(-2.0, 2.0, placements))
        return [{0: [1.0] * 20, 1: [float(item)] * 20} for item in ratios]

    assert decides(noisy(1.0, 0.001, 8))
    assert decides(noisy(1.2, 0.001, 8))
    assert not decides(noisy(1.02, 0.01, 8))  # between what is claimed and what is allowed
    assert not decides(noisy(1.0, 0.05, 8))
    assert decides(noisy(1.0, 0.05, 200))


def test_integers_and_infinities_are_compared() -> None:
    spec = chain_spec(WEIGHT)
    old, new = Executable(spec), Executable(chain_spec(np.full(COUNT, 1e30, np.float32)))
    (found,) = different_outputs(old, new, {"x": WEIGHT}, 3)
    assert found == Difference("y", float("inf"), 3)
