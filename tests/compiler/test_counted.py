"""How counts are told."""

from __future__ import annotations

import pytest

from tunefarm.compiler.counted import counted


@pytest.mark.parametrize(("count", "told"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_one_is_told_in_the_singular(count: int, told: str) -> None:
    assert counted(count, "run") == told
