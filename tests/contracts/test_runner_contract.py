"""What every runner promises, whatever it runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.measure.fault_kernels import COMPILE_FAULT, make_request
from tunefarm.compiler.errors import MeasureError, SettingsError
from tunefarm.measure.farm.farm_process import program_of
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.replay_runner import ReplayRunner, record_key
from tunefarm.measure.farm.runner import Runner, RunnerOptions
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.measure.sandbox.reaper import Process, is_alive, run_processes

TAG = "TUNEFARM_TEST"  # an environment variable that marks the processes of one test

EXPECTED = {
    "none": Status.OK,
    "segfault": Status.CRASHED,
    "hang": Status.RUN_TIMEOUT,
    "wrong": Status.WRONG_RESULT,
    "build_error": Status.BUILD_ERROR,
    "build_crash": Status.BUILD_ERROR,
    "eats_memory": Status.OUT_OF_MEMORY,
    "killed": Status.QUARANTINED,
}


def recorded() -> dict[tuple[str, str], MeasureResult]:
    """What a replay runner needs to behave like the others on the fault kernels."""
    result = {}
    for fault, status in EXPECTED.items():
        request = make_request(fault)
        samples = (1e-6, 2e-6, 3e-6) if status is Status.OK else ()
        error = "" if status is Status.OK else "as recorded"
        answer = MeasureResult("recorded", status, samples, error)
        result[record_key(request.workload_key, request.schedule)] = answer
    return result


def make(kind: str) -> Runner:
    if kind == "replay":
        return ReplayRunner(recorded())
    return create_runner(kind, RunnerOptions(compile=COMPILE_FAULT))


@pytest.fixture(scope="module", params=["local", "ray", "replay"])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with make(request.param) as result:
        yield result


def collect(runner: Runner) -> list[MeasureResult]:
    results: list[MeasureResult] = []
    while runner.pending:
        batch = runner.results(timeout=120)
        assert batch, "no result within two minutes"
        results += batch
    return results


def test_runner_has_the_protocol(runner: Runner) -> None:
    assert isinstance(runner, Runner)
    assert runner.capacity >= 1


def test_every_request_has_exactly_one_result_with_its_own_class(runner: Runner) -> None:
    expected: dict[str, Status] = {}
    for fault, status in EXPECTED.items():
        request = make_request(fault, options={"run_timeout": 1.0} if fault == "hang" else {})
        expected[request.request_id] = status
        runner.submit(request)
    runner.submit(make_request("none", "the last"))
    expected["the last"] = Status.OK
    assert runner.pending == len(expected)
    results = collect(runner)
    assert sorted(result.request_id for result in results) == sorted(expected)
    assert {result.request_id: result.status for result in results} == expected


def test_failure_has_text_and_no_samples_and_infinite_latency(runner: Runner) -> None:
    runner.submit(make_request("segfault"))
    (result,) = collect(runner)
    assert result.error and not result.samples
    assert result.latency == float("inf")


def test_success_has_samples_and_a_latency(runner: Runner) -> None:
    runner.submit(make_request("none"))
    (result,) = collect(runner)
    assert result.status is Status.OK and result.error == ""
    assert min(result.samples) <= result.latency <= max(result.samples)


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("fault", ["segfault", "wrong", "build_error", "build_crash"])
def test_who_of_a_pair_failed_is_named(runner: Runner, fault: str, culprit: int) -> None:
    faults = ["none", "none"]
    faults[culprit] = fault
    runner.submit(replace(make_request(faults[0]), rivals=([["fault", faults[1]]],)))
    (result,) = collect(runner)
    assert (result.status, result.culprit) == (EXPECTED[fault], culprit)


def test_sides_of_a_pair_have_as_many_slices(runner: Runner) -> None:
    runner.submit(replace(make_request("none"), rivals=([["fault", "none"]],)))
    (result,) = collect(runner)
    assert (result.status, result.culprit) == (Status.OK, None)
    assert len(result.rivals) == 1 and len(result.rivals[0]) == len(result.samples) >= 3


def test_more_requests_than_the_capacity_are_all_answered(runner: Runner) -> None:
    count = 2 * runner.capacity + 3
    for number in range(count):
        runner.submit(make_request("none", str(number)))
    results = collect(runner)
    assert sorted(int(result.request_id) for result in results) == list(range(count))
    assert {result.status for result in results} == {Status.OK}


def test_nothing_pending_means_no_results_at_once(runner: Runner) -> None:
    assert runner.pending == 0
    assert runner.results(timeout=None) == []
    assert runner.results(timeout=0) == []


def test_unknown_option_is_refused_at_once(runner: Runner) -> None:
    with pytest.raises(MeasureError, match="unknown timing option"):
        runner.submit(make_request("none", options={"no_such_option": 1}))
    assert runner.pending == 0


@pytest.mark.parametrize("kind", ["local", "replay"])
def test_closed_runner_takes_nothing_and_can_be_closed_again(kind: str) -> None:
    subject = make(kind)
    subject.submit(make_request("none"))
    subject.close()
    subject.close()
    with pytest.raises(MeasureError, match="closed"):
        subject.submit(make_request("none"))
    while subject.pending:
        assert subject.results(timeout=0)


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="known: ray, local"):
        create_runner("cloud")


def test_too_many_threads_are_refused() -> None:
    with pytest.raises(MeasureError, match="need 4096 cores"):
        create_runner("local", RunnerOptions(threads=4096))


def test_replay_of_an_unknown_schedule_is_a_typed_failure() -> None:
    subject = make("replay")
    subject.submit(make_request("tail"))
    (result,) = subject.results()
    assert result.status is Status.BUILD_ERROR
    assert "no recorded result" in result.error


_DRIVER = """
import signal
import sys
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import RunnerOptions
from tests.measure.fault_kernels import COMPILE_FAULT, make_request

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
    with create_runner(sys.argv[1], RunnerOptions(compile=COMPILE_FAULT)) as runner:
        runner.submit(make_request("none"))
        assert runner.results()
        runner.submit(make_request("hang", options={"run_timeout": 600.0}))
        assert not runner.results(timeout=1.0)
        runner.submit(make_request("none"))
        try:
            print("measuring", flush=True)
            runner.results()
        except KeyboardInterrupt:
            pass
    print("closed", flush=True)
"""


def wait_until_gone(tag: str, noted: set[Process]) -> None:
    deadline = time.monotonic() + 10
    while left := {found for found in noted | run_processes(tag, TAG) if is_alive(found)}:
        assert time.monotonic() < deadline, f"processes are left: {left}"


@pytest.mark.parametrize(
    ("signal_name", "kind"),
    [
        ("INT", "local"),
        ("KILL", "local"),
        pytest.param("INT", "ray", marks=pytest.mark.nightly),  # by day tests/attack has it
        pytest.param("KILL", "ray", marks=pytest.mark.nightly),
    ],
)
def test_no_process_is_left_when_the_driver_is_interrupted_or_killed(
    kind: str, signal_name: str
) -> None:
    tag = f"{os.getpid()}-{kind}-{signal_name}"
    environment = {**os.environ, TAG: tag}
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, kind],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    with driver:
        assert driver.stdout.readline() == "measuring\n"
        noted = run_processes(tag, TAG)
        assert len(noted) >= 3
        if signal_name == "INT":
            os.killpg(driver.pid, 2)  # as a terminal does: the whole foreground group
            assert driver.stdout.readline() == "closed\n"
            assert driver.wait(60) == 0
        else:
            driver.kill()
    wait_until_gone(tag, noted)


@pytest.mark.parametrize(
    "daemon", [pytest.param(name, marks=pytest.mark.nightly) for name in ("raylet", "gcs_server")]
)
def test_the_death_of_ray_ends_the_job_and_leaves_no_process(daemon: str) -> None:
    tag = f"{os.getpid()}-{daemon}"
    environment = {**os.environ, TAG: tag}
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, "ray"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    with driver:
        assert driver.stdout.readline() == "measuring\n"
        noted = run_processes(tag, TAG)
        killed = [process for process in noted if program_of(process) == daemon]
        assert len(killed) == 1
        os.kill(killed[0].id, signal.SIGKILL)
        _, errors = driver.communicate(timeout=60)
        assert driver.returncode == 1
        assert "Ray has ended, not by us" in errors
    wait_until_gone(tag, noted)
