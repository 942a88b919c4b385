"""What disturbs a sample."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from measure.machine import Activity
from measure.worker.watch import CoreWatch, is_tainted

QUIET = Activity(0.0, 0, 0.0)


@pytest.mark.parametrize(
    ("noise", "tainted"),
    [
        (QUIET, False),
        (Activity(0.01, 0, 0.0), True),  # the hypervisor
        (Activity(0.0, 1, 0.00005), False),  # a short interruption
        (Activity(0.0, 1, 0.0005), True),
    ],
)
def test_waiting_for_a_core_taints_a_sample(noise: Activity, tainted: bool) -> None:
    assert is_tainted(noise, 0.01) == tainted


def test_an_involuntary_switch_taints_where_waiting_is_not_told() -> None:
    assert is_tainted(Activity(0.0, 1, 0.0), 0.01, keeps_delay=False)
    assert not is_tainted(QUIET, 0.01, keeps_delay=False)


def test_noise_adds_up_over_samples() -> None:
    readings = iter([QUIET, QUIET, Activity(0.0, 1, 0.1), Activity(0.0, 1, 0.1), QUIET])
    now = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    watch = CoreWatch([0], read=lambda _: next(readings), clock=lambda: next(now))
    watch.begin()
    assert watch.disturbed()
    assert watch.total == Activity(0.0, 1, 0.1)


def test_another_process_on_the_core_is_seen() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    spinner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os; os.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert spinner.stdout is not None
        spinner.stdout.readline()
        os.sched_setaffinity(0, [core])
        watch = CoreWatch([core])
        end = time.perf_counter() + 0.3
        while time.perf_counter() < end:
            pass
        assert watch.disturbed()
        assert watch.total.queued_seconds > 0.01 or watch.total.involuntary_switches > 0
    finally:
        os.sched_setaffinity(0, before)
        spinner.kill()
        spinner.communicate()
