"""Worker processes are killed at random moments: every request is answered, the work goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest

from tests.measure.fault_kernels import COMPILE_FAULT, make_request
from tunefarm.measure.farm.local_runner import LocalRunner
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import RunnerOptions
from tunefarm.measure.measurement import MeasureResult, Status


@pytest.mark.parametrize("most", [12, pytest.param(100, marks=pytest.mark.nightly)])
def test_killed_workers_cost_no_result(most: int) -> None:
    rng = random.Random(5)
    results: list[MeasureResult] = []
    submitted = kills = 0
    with create_runner("local", RunnerOptions(compile=COMPILE_FAULT)) as runner:
        assert isinstance(runner, LocalRunner)
        while kills < most:
            while runner.pending < 3:
                runner.submit(make_request("sleep 10000", str(submitted)))
                submitted += 1
            results += runner.results(timeout=rng.random() * 0.3)
            pids = runner.backend.worker_pids()
            if pids:
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    kills += 1
        deadline = time.monotonic() + 120
        while runner.pending and time.monotonic() < deadline:
            results += runner.results(timeout=1.0)
        assert runner.pending == 0
    counts = Counter(result.request_id for result in results)
    assert len(counts) == submitted and set(counts.values()) == {1}
    assert {result.status for result in results} <= {Status.OK, Status.QUARANTINED}
    unlucky = [result for result in results if result.status is Status.QUARANTINED]
    assert all("SIGKILL" in result.error for result in unlucky)
    assert len(unlucky) <= most // 2
