"""How often finalists that are equal have a winner, and how often a difference is found."""

from __future__ import annotations

import pytest

from tests.benchmarks.farm import meet

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("load", [False, True], ids=["quiet", "loaded"])
def test_equal_kernels_seldom_have_a_winner(load: bool) -> None:
    assert meet(200, 0.0, load) <= 10


def test_a_kernel_five_percent_slower_is_found() -> None:
    assert meet(100, 0.05, load=False) >= 90
