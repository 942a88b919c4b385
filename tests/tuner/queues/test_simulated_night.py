"""A small night with faults: the runner and a job are killed, the disk is full for a while.

    python -m pytest -m nightly tests/tuner/queues/test_simulated_night.py

The whole one, with a cluster that loses nodes: python -m tests.benchmarks.night
"""

from __future__ import annotations

import pytest

from tests.benchmarks.night import simulate

pytestmark = [pytest.mark.nightly, pytest.mark.alone]


def test_a_night_with_faults_ends_in_time_and_loses_nothing() -> None:
    rows = simulate(3.0, small=True)
    assert [row for row in rows if not row[2]] == []
