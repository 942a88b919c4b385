"""Hours of attacks, each with the seeds of its day: what nobody has thought of yet."""

from __future__ import annotations

import time

import pytest

from tests.attack.__main__ import main
from tests.attack.attacks import attack_names

_SECONDS = 1800


@pytest.mark.nightly
@pytest.mark.parametrize("name", attack_names())
def test_half_an_hour_of_attacks_finds_nothing(name: str) -> None:
    seed = int(time.time())
    assert main([name, "--seconds", str(_SECONDS), "--seed", str(seed)]) == 0, f"seed {seed}"
