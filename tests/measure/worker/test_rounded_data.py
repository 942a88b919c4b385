"""Candidates that round data to 8 bits are checked against a reference that rounds it alike."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compiler.schedule.test_rounded_data import Product, schedule_of
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import naive_schedule
from tunefarm.compiler.target import host_target
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.sandbox.messages import InFlight
from tunefarm.measure.worker.build_candidate import (
    BuiltCandidate,
    compile_candidate,
    pack_candidates,
    unpack_candidates,
)
from tunefarm.measure.worker.run_candidate import CandidateRunner
from tunefarm.measure.worker.timer import TimingOptions
from tunefarm.tuner.records.trials import task_key

QUICK = TimingOptions.of({"samples": 3, "min_sample_seconds": 1e-4, "unstable_limit": 9})
KERNEL = Product(6, 64, 4, 32, zero=True).kernel


def compiled(kernel: FusedKernel, schedule: Schedule) -> BuiltCandidate:
    request = MeasureRequest(
        "", kernel_to_json(kernel), workload_key(kernel), schedule.to_json(), threads=1
    )
    return compile_candidate(request, host_target())


def measured(folder: Path, *candidates: BuiltCandidate) -> MeasureResult:
    cores = sorted(os.sched_getaffinity(0))[:1]
    runner = CandidateRunner(folder, 1, cores, InFlight(-1))
    kernel = kernel_to_json(KERNEL)
    return runner.run(kernel, workload_key(KERNEL), candidates, QUICK).result


def test_rounded_and_exact_candidates_are_compared_with_each_other(tmp_path: Path) -> None:
    rounded = compiled(KERNEL, schedule_of(KERNEL, host_target()))
    exact = compiled(KERNEL, naive_schedule())
    assert (rounded.rounds_data, exact.rounds_data) == (True, False)
    assert measured(tmp_path, exact).status is Status.OK
    assert measured(tmp_path, rounded, exact).status is Status.OK


@pytest.mark.parametrize("claims", [False, True])
def test_a_candidate_has_to_round_as_its_schedule_says(tmp_path: Path, claims: bool) -> None:
    schedule = naive_schedule() if claims else schedule_of(KERNEL, host_target())
    wrong = replace(compiled(KERNEL, schedule), rounds_data=claims)
    assert measured(tmp_path, wrong).status is Status.WRONG_RESULT


def test_candidates_are_sent_with_how_they_round() -> None:
    rounded = compiled(KERNEL, schedule_of(KERNEL, host_target()))
    exact = compiled(KERNEL, naive_schedule())
    assert unpack_candidates(pack_candidates([rounded, exact])) == (rounded, exact)


def test_records_of_rounded_data_are_kept_apart() -> None:
    keys = {
        name: task_key("w", host_target(), 1, name)
        for name in ("default", "bf16", "int8-activations")
    }
    assert keys["default"] == keys["bf16"] != keys["int8-activations"]
