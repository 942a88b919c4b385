"""What else happened on the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tunefarm.measure.machine import Activity
from tunefarm.measure.worker.watch import CoreWatch


def test_activity_is_what_happened_since_the_watch_began() -> None:
    readings = iter([Activity(1.0, 5, 0.5), Activity(1.5, 6, 0.75)])
    watch = CoreWatch([0], read=lambda _: next(readings))
    assert watch.activity() == Activity(0.5, 1, 0.25)


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
        seen = watch.activity()
        assert seen.queued_seconds > 0.01 or seen.involuntary_switches > 0
    finally:
        os.sched_setaffinity(0, before)
        spinner.kill()
        spinner.communicate()
