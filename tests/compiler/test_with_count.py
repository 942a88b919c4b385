"""How counts are told."""

from __future__ import annotations

import pytest

from tunefarm.compiler.errors import with_count


@pytest.mark.parametrize(("count", "told"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_one_is_told_in_the_singular(count: int, told: str) -> None:
    assert with_count(count, "run") == told
