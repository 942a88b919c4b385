"""What else happened on the cores."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.measure.fault_kernels import compile_fault, make_request
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.measure.machine import Activity
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.sandbox.messages import InFlight
from tunefarm.measure.worker import run_candidate
from tunefarm.measure.worker.build_candidate import (
    BuiltCandidate,
    build_candidate,
    unpack_candidates,
)
from tunefarm.measure.worker.run_candidate import CandidateRunner, CoreWatch
from tunefarm.measure.worker.timer import TimingOptions
from tunefarm.measure.worker.workload import Workload


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


COLD = {"idle_bytes": 1 << 30}  # outputs are written to many places
QUICK = TimingOptions(samples=3, min_sample_seconds=1e-5, warmup_seconds=0.0, unstable_limit=9.0)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The symbols of the candidates that are loaded from now on."""
    bound: list[str] = []

    class Counted(run_candidate.BoundCall):
        def __init__(self, workload: Workload, candidate: BuiltCandidate, *others: Any) -> None:
            super().__init__(workload, candidate, *others)
            bound.append(candidate.symbol)

    monkeypatch.setattr(run_candidate, "BoundCall", Counted)
    return bound


@pytest.fixture
def runner(tmp_path: Path) -> CandidateRunner:
    cores = sorted(os.sched_getaffinity(0))
    return CandidateRunner(tmp_path, 1, cores, InFlight(-1))


def measure(runner: CandidateRunner, *faults: str, options: TimingOptions = QUICK) -> MeasureResult:
    request = make_request(faults[0])
    built: list[BuiltCandidate] = [compile_fault(make_request(f), host_target()) for f in faults]
    return runner.run(request.kernel, request.workload_key, built, options).result


def test_all_memory_is_there_before_the_first_slice(runner: CandidateRunner) -> None:
    result = measure(runner, "none", "none", options=replace(QUICK, **COLD))
    assert result.status is Status.OK, result.error
    assert result.machine["faulted_slices"] == 0


def test_slices_in_which_memory_was_missing_are_timed_again(
    runner: CandidateRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the system has taken pages away: before every third slice they are dropped."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    run = run_candidate.BoundCall.run
    slices: list[tuple[float, bool]] = []  # seconds per call, and whether pages were missing

    def dropping(call: run_candidate.BoundCall, calls: int) -> float:
        if call._arena is None:  # it is checked
            return run(call, calls)
        if len(slices) % 3 == 0:
            for place in call._arena.outputs(5)[1:]:
                page = place // mmap.PAGESIZE * mmap.PAGESIZE
                assert not libc.madvise(page, mmap.PAGESIZE, mmap.MADV_DONTNEED)
        seconds = run(call, calls)
        slices.append((seconds / calls, call._clock.faults > 0))
        return seconds

    monkeypatch.setattr(run_candidate.BoundCall, "run", dropping)
    enough = replace(QUICK, **COLD, samples=12, min_sample_seconds=1e-4)
    result = measure(runner, "none", "none", options=enough)
    assert result.status is Status.OK, result.error
    assert result.machine["faulted_slices"] == sum(faulted for _, faulted in slices) >= 4
    whole = {seconds for seconds, faulted in slices if not faulted}
    assert whole.issuperset([*result.samples, *result.rivals[0]])


@pytest.mark.parametrize(("copies", "places"), [(4, 5), (5, 4), (3, 1), (1, 3)])
def test_no_call_reads_or_writes_what_the_one_before_has(
    runner: CandidateRunner, monkeypatch: pytest.MonkeyPatch, copies: int, places: int
) -> None:
    kernel = kernel_of([f32(3, 64), f32(64, 48)], [("matmul", ["x0", "x1"], {})], ["x1"])
    space = schedule_space(kernel, host_target(), 1)
    schedule = space.schedule(space.default()).to_json()
    key = workload_key(kernel)
    request = MeasureRequest("cold", kernel_to_json(kernel), key, schedule, 1, rivals=(schedule,))
    build = build_candidate(request, host_target())
    monkeypatch.setattr(run_candidate, "copies_needed", lambda *_: copies)
    monkeypatch.setattr(run_candidate, "outputs_needed", lambda *_: places)
    called: list[tuple[int, int]] = []  # addresses of the constant and of the output
    run = run_candidate.BoundCall._run

    def noted(call: run_candidate.BoundCall, tables: Any, calls: int, turn: int) -> float:
        if tables is call._timed and call._arena is not None:
            for number in range(turn, turn + calls):
                _, constant, output = tables.memory[number % tables.rows]
                called.append((constant, output))
        return run(call, tables, calls, turn)

    monkeypatch.setattr(run_candidate.BoundCall, "_run", noted)
    result = runner.run(request.kernel, key, unpack_candidates(build.candidates), QUICK).result
    assert result.status is Status.OK, result.error
    constants, outputs = ([pair[side] for pair in called] for side in (0, 1))
    assert copies == 1 or all(a != b for a, b in pairwise(constants))
    assert places == 1 or all(a != b for a, b in pairwise(outputs))


def test_a_reference_is_loaded_once_and_every_candidate_anew(
    runner: CandidateRunner, loads: list[str]
) -> None:
    for candidate in ("spin 1", "spin 2", "spin 2", "none"):
        result = measure(runner, candidate, "none")
        assert result.status is Status.OK, result.error
        assert len(result.samples) == len(result.rivals[0]) >= 3
    assert len(loads) == 1 + 4


def test_slices_take_turns_with_several_loads(
    runner: CandidateRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    of = run_candidate._Load.of

    def counted(code: LoadedCode, symbol: str) -> run_candidate._Load:
        load = of(code, symbol)

        def repeat(*arguments: object) -> None:
            called.append(load.kernel)
            load.repeat(*arguments)

        return replace(load, repeat=repeat)

    monkeypatch.setattr(run_candidate._Load, "of", counted)
    enough = replace(QUICK, samples=2 * run_candidate.LOADS)  # whatever rounds are left out
    result = measure(runner, "none", "none", options=enough)
    assert result.status is Status.OK, result.error
    assert len(set(called)) == 2 * run_candidate.LOADS


def test_what_was_a_candidate_is_checked_in_full_as_one_again(
    runner: CandidateRunner, loads: list[str]
) -> None:
    assert measure(runner, "none").status is Status.OK
    assert measure(runner, "none").status is Status.OK
    assert len(loads) == 2


def test_a_reference_that_goes_wrong_later_is_blamed_and_loaded_anew(
    runner: CandidateRunner, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_candidate, "LOADS", 1)  # the kernel counts the calls of its own load
    # Two calls of each request check a reference when it is new; its timed calls come later.
    result = measure(runner, "none", "late_nothing")
    assert (result.status, result.culprit) == (Status.WRONG_RESULT, 1)
    result = measure(runner, "none", "late_nothing")
    assert (result.status, result.culprit) == (Status.WRONG_RESULT, 1)
    assert len(loads) == 4


def test_one_schedule_may_be_several_sides_of_a_request(
    runner: CandidateRunner, loads: list[str]
) -> None:
    for _ in range(2):
        result = measure(runner, "none", "none", "none")
        assert result.status is Status.OK, result.error
    assert len(loads) == 3 + 2  # of equal references one stays


def test_references_of_a_kernel_come_and_go(runner: CandidateRunner, loads: list[str]) -> None:
    references = [f"spin {number}" for number in range(6)]
    for reference in references:
        assert measure(runner, "none", reference).status is Status.OK
    del loads[:]
    assert measure(runner, "none", references[-1]).status is Status.OK
    assert len(loads) == 1
    assert measure(runner, "none", references[0]).status is Status.OK
    assert len(loads) == 3
