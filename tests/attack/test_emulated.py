"""The attack on Arm's code asks an emulator, and sees what is wrong there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.attack import emulated as attacked
from tests.attack import sized
from tests.attack.emulated import NO_EMULATOR, Emulated
from tests.attack.emulated_sizes import sized_outputs
from tests.attack.sized import SAME, WRONG
from tests.attack.test_sized import SEED, small
from tests.compiler.runtime.emulated import emulated


@emulated
def test_what_arm_computes_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized, "draw", small)
    attack = Emulated(tmp_path)
    assert attack.attempt(SEED).label == SAME
    right = sized_outputs
    monkeypatch.setattr(
        attacked,
        "sized_outputs",
        lambda *given, **more: [[np.add(a, 1) for a in call] for call in right(*given, **more)],
    )
    outcome = attack.attempt(SEED)
    assert outcome.label == WRONG
    assert outcome.detail.startswith("built for neoverse-v1")


def test_without_an_emulator_nothing_is_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacked, "EMULATOR", "no-such-emulator")
    assert Emulated(tmp_path).attempt(SEED).label == NO_EMULATOR
