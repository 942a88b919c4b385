"""Records from everywhere: no build is wrong, none loses after a check, and each has its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.foreign_records import Tally, run


@pytest.mark.slow
def test_a_world_of_foreign_records_makes_nothing_wrong_slower_or_unexplained(
    tmp_path: Path,
) -> None:
    found = run(tmp_path, 60, seed=3, draws=60)
    assert found == Tally(found.records)
    assert found.records >= 60


@pytest.mark.nightly
def test_two_thousand_records_do_not(tmp_path: Path) -> None:
    found = run(tmp_path, 2000)
    assert found == Tally(found.records)
