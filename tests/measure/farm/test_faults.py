"""Every way in which foreign code fails is the right class, and the worker is usable afterwards."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.measure.fault_kernels import COMPILE_FAULT, compile_fault, make_request
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.target import host_target
from tunefarm.db.records import TaskKey, TrialRecord
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.sandbox.worker_process import (
    WorkerLostError,
    WorkerProcess,
    WorkerStartError,
    classify_exit,
)
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import BuildResult, build_candidate
from tunefarm.measure.worker.supervisor import BUILD, MEASURE, Supervisor
from tunefarm.tuner.records.trials import best_record, trial_record

_RECORDED = {
    "fingerprint",
    "load",
    "steal_seconds",
    "queued_seconds",
    "calls",
    "anchor_seconds",
    "anchor_drift",
    "relative_mad",
}


FAULTS = [
    ("segfault", Status.CRASHED, "SIGSEGV"),
    ("illegal", Status.CRASHED, "SIGILL"),
    ("arithmetic", Status.CRASHED, "SIGFPE"),
    ("abort", Status.CRASHED, "SIGABRT"),
    ("exit", Status.CRASHED, "exited with code 0"),
    ("far_overrun", Status.CRASHED, "SIGSEGV"),
    ("overrun", Status.WRONG_RESULT, "after the end of output"),
    ("underrun", Status.WRONG_RESULT, "1 byte(s) before the start of output"),
    ("writes_input", Status.WRONG_RESULT, "input in0 was modified"),
    ("tail", Status.WRONG_RESULT, "output[999] is nan"),
    ("wrong", Status.WRONG_RESULT, "(1000 of 1000 elements are wrong)"),
    ("imprecise", Status.WRONG_RESULT, "seed 0: output["),
    ("stale", Status.WRONG_RESULT, "seed 1: output["),
    ("undefined", Status.BUILD_ERROR, "tunefarm_no_such_function"),
    ("eats_memory", Status.OUT_OF_MEMORY, "cannot map"),
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> WorkerSettings:
    return WorkerSettings(
        cores=(max(os.sched_getaffinity(0)),),
        threads=1,
        target=host_target().to_json(),
        scratch=str(tmp_path_factory.mktemp("scratch")),
        compile=COMPILE_FAULT,
    )


@pytest.fixture(scope="module")
def measurer(settings: WorkerSettings) -> Iterator[Supervisor]:
    supervisor = Supervisor(settings, MEASURE)
    yield supervisor
    supervisor.close()
    supervisor.stop()


@pytest.fixture(scope="module")
def builder(settings: WorkerSettings) -> Iterator[Supervisor]:
    supervisor = Supervisor(settings, BUILD)
    yield supervisor
    supervisor.close()
    supervisor.stop()


def run(supervisor: Supervisor, fault: str, **options: float | int) -> MeasureResult:
    request = make_request(fault, options=options)
    build = build_candidate(request, host_target(), compile_fault)
    assert build.status is Status.OK, build.error
    return supervisor.measure(request, build)


@pytest.mark.parametrize(("fault", "status", "text"), FAULTS)
def test_fault_has_its_class_and_the_next_candidate_runs(
    measurer: Supervisor, fault: str, status: Status, text: str
) -> None:
    result = run(measurer, fault)
    assert (result.status, result.samples) == (status, ())
    assert text in result.error
    assert run(measurer, "none").status is Status.OK


def test_endless_loop_is_a_timeout_and_its_process_is_gone(measurer: Supervisor) -> None:
    measurer.start()
    pid = measurer.pid
    assert run(measurer, "hang", run_timeout=0.5).status is Status.RUN_TIMEOUT
    assert pid is not None and not Path("/proc", str(pid)).exists()
    assert run(measurer, "none").status is Status.OK


def test_right_kernel_has_samples_and_machine_facts(measurer: Supervisor) -> None:
    result = run(measurer, "none", samples=5)
    assert len(result.samples) == 5
    assert 0 < result.latency < 1
    assert result.machine["cores"] == [max(os.sched_getaffinity(0))]
    assert set(result.machine) >= _RECORDED


def test_prints_of_foreign_code_do_not_corrupt_frames(measurer: Supervisor) -> None:
    assert run(measurer, "prints").status is Status.OK


def test_process_is_kept_after_success_and_replaced_after_damage(measurer: Supervisor) -> None:
    run(measurer, "none")
    first = measurer.pid
    run(measurer, "wrong")
    assert measurer.pid == first
    run(measurer, "writes_input")
    run(measurer, "none")
    assert measurer.pid != first


def test_fresh_process_option_replaces_the_process(measurer: Supervisor) -> None:
    run(measurer, "none")
    first = measurer.pid
    assert run(measurer, "none", fresh_process=1).status is Status.OK
    assert measurer.pid != first


def test_kill_from_outside_is_a_lost_worker_not_the_candidates_fault(measurer: Supervisor) -> None:
    with pytest.raises(WorkerLostError, match="killed from outside by SIGKILL"):
        run(measurer, "killed")


def test_worker_killed_while_idle_is_replaced_unnoticed(measurer: Supervisor) -> None:
    run(measurer, "none")
    assert measurer.pid is not None
    os.kill(measurer.pid, signal.SIGKILL)
    while Path(f"/proc/{measurer.pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0)
    assert run(measurer, "none").status is Status.OK


def test_interrupt_of_the_terminal_does_not_reach_the_worker(measurer: Supervisor) -> None:
    run(measurer, "none")
    assert measurer.pid is not None
    assert os.getpgid(measurer.pid) != os.getpgid(0)
    os.kill(measurer.pid, signal.SIGINT)
    first = measurer.pid
    assert run(measurer, "none").status is Status.OK
    assert measurer.pid == first


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ("build_error", Status.BUILD_ERROR, "the schedule does not fit\nfor i in 0..1000"),
        ("build_bug", Status.BUILD_ERROR, "KeyError: 'i_inner'"),
        ("build_crash", Status.BUILD_ERROR, "SIGABRT"),
    ],
)
def test_failed_build_has_its_text_and_the_next_one_works(
    builder: Supervisor, fault: str, status: Status, text: str
) -> None:
    result = builder.build(make_request(fault))
    assert (result.status, result.candidates) == (status, b"")
    assert text in result.error
    assert builder.build(make_request("none")).status is Status.OK


def test_build_that_does_not_end_is_a_build_timeout(builder: Supervisor) -> None:
    builder.start()
    request = make_request("build_hang", options={"build_timeout": 0.5})
    assert builder.build(request).status is Status.BUILD_TIMEOUT


def test_worker_that_cannot_start_is_lost(settings: WorkerSettings) -> None:
    broken = replace(settings, compile="tests.measure.fault_kernels:no_such_function")
    with pytest.raises(WorkerLostError, match="no_such_function"):
        WorkerProcess(broken, BUILD)


def test_closed_supervisor_does_not_run_anything(settings: WorkerSettings) -> None:
    supervisor = Supervisor(settings, MEASURE)
    supervisor.close()
    with pytest.raises(MeasureError, match=r"closed|stopped while it waited for a core"):
        supervisor.measure(make_request("none"), BuildResult(Status.OK))


@pytest.mark.parametrize(
    ("returncode", "oom", "status"),
    [
        (-signal.SIGSEGV, False, Status.CRASHED),
        (-signal.SIGBUS, False, Status.CRASHED),
        (-signal.SIGXCPU, False, Status.RUN_TIMEOUT),
        (-signal.SIGKILL, True, Status.OUT_OF_MEMORY),
        (-signal.SIGKILL, False, Status.INFRASTRUCTURE),
        (-signal.SIGTERM, False, Status.INFRASTRUCTURE),
        (3, False, Status.CRASHED),
    ],
)
def test_exit_is_classified_by_signal(returncode: int, oom: bool, status: Status) -> None:
    assert classify_exit(returncode, oom)[0] is status


def compare(
    supervisor: Supervisor, *faults: str, **options: float | int
) -> tuple[MeasureRequest, MeasureResult]:
    """Measure kernels with these faults side by side."""
    first = make_request(faults[0], options=options)
    request = replace(first, rivals=tuple([["fault", fault]] for fault in faults[1:]), seed=3)
    build = build_candidate(request, host_target(), compile_fault)
    assert build.status is Status.OK, build.error
    return request, supervisor.measure(request, build)


def test_rivals_are_timed_side_by_side(measurer: Supervisor) -> None:
    _, result = compare(measurer, "none", "prints", "none", samples=9)
    assert result.status is Status.OK, result.error
    assert 9 <= len(result.samples) <= 18  # more, when they scatter
    assert {len(samples) for samples in result.rivals} == {len(result.samples)}
    assert result.culprit is None


@pytest.mark.parametrize(
    ("faults", "culprit"), [(("wrong", "none"), 0), (("none", "none", "tail"), 2)]
)
def test_the_wrong_one_of_several_is_named(
    measurer: Supervisor, faults: tuple[str, ...], culprit: int
) -> None:
    _, result = compare(measurer, *faults)
    assert (result.status, result.culprit) == (Status.WRONG_RESULT, culprit)


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize(("fault", "status"), [(fault, status) for fault, status, _ in FAULTS])
def test_every_fault_of_a_pair_is_blamed_on_its_schedule(
    measurer: Supervisor, fault: str, status: Status, culprit: int
) -> None:
    faults = ["none", "none"]
    faults[culprit] = fault
    _, result = compare(measurer, *faults)
    assert (result.status, result.culprit) == (status, culprit)


@pytest.mark.parametrize("culprit", [0, 1])
def test_an_endless_loop_in_a_pair_is_blamed_on_its_schedule(
    measurer: Supervisor, culprit: int
) -> None:
    faults = ["none", "none"]
    faults[culprit] = "hang"
    _, result = compare(measurer, *faults, run_timeout=0.5)
    assert (result.status, result.culprit) == (Status.RUN_TIMEOUT, culprit)


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("fault", ["build_error", "build_crash", "build_hang"])
def test_a_failed_build_of_a_pair_is_blamed_on_its_schedule(
    builder: Supervisor, fault: str, culprit: int
) -> None:
    faults = ["none", "none"]
    faults[culprit] = fault
    first = make_request(faults[0], options={"build_timeout": 0.5})
    builder.start()
    result = builder.build(replace(first, rivals=([["fault", faults[1]]],)))
    assert result.culprit == culprit
    assert result.status in (Status.BUILD_ERROR, Status.BUILD_TIMEOUT)


def test_a_worker_with_another_niceness_than_the_driver_is_refused(
    settings: WorkerSettings,
) -> None:
    strict = replace(settings, niceness=os.getpriority(os.PRIO_PROCESS, 0) - 1)
    with pytest.raises(WorkerStartError, match="niceness"):
        WorkerProcess(strict, MEASURE)


def test_a_worker_of_other_sources_than_the_driver_is_refused(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when tunefarm is installed again while a job runs."""
    monkeypatch.setattr(
        "tunefarm.measure.sandbox.worker_process.code_stamp", lambda: "/elsewhere (1)"
    )
    with pytest.raises(WorkerStartError, match=r"changed after this job began: it runs /elsewhere"):
        WorkerProcess(settings, MEASURE)


def test_flushed_caches_are_part_of_the_request(measurer: Supervisor) -> None:
    warm = run(measurer, "none", cold_constants=0, min_sample_seconds=0.002)
    flushed = run(measurer, "none", flush_cache=1)
    assert (warm.status, flushed.status) == (Status.OK, Status.OK)
    assert flushed.machine["calls"] == 1 < warm.machine["calls"]
    assert flushed.latency > 2 * warm.latency


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.nightly)])
def test_a_fault_is_never_selected_however_often(measurer: Supervisor, times: int) -> None:
    rng = random.Random(10)
    key = TaskKey("w", "t", 1, "default", "1")
    records: list[TrialRecord] = []
    for round in range(times):
        faults = [*((fault, status) for fault, status, _ in FAULTS), ("hang", Status.RUN_TIMEOUT)]
        # Each has its class by day, see above; here it is what becomes of it.
        for fault, status in rng.sample(faults, len(faults) if times > 1 else 3):
            timeout = {"run_timeout": 0.3} if fault == "hang" else {}
            result = run(measurer, fault, **timeout)
            assert result.status is status, (fault, result.error)
            named = replace(result, request_id=f"{fault} {round}")
            schedule = [["fault", fault]]
            records.append(
                trial_record(key, named, sketch="s", choices={}, schedule=schedule, job="j")
            )
    assert best_record(records) is None
    right = replace(run(measurer, "none"), request_id="right")
    records.insert(0, trial_record(key, right, sketch="s", choices={}, schedule=[], job="j"))
    best = best_record(records)
    assert best is not None and best.request_id == "right"
