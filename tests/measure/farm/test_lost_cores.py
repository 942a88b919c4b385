"""Cores that are taken from a job while it runs: by a cpuset, taskset, or hot-unplug."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.measure.fault_kernels import COMPILE_FAULT, compile_fault, make_request
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.target import host_target
from tunefarm.measure.farm.local_runner import LocalRunner
from tunefarm.measure.farm.slots import SlotPlan
from tunefarm.measure.machine import AffinityWatch, on_cores, pin
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.measure.sandbox.worker_process import CoresLostError
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import build_candidate
from tunefarm.measure.worker.supervisor import MEASURE, Supervisor
from tunefarm.tuner.confirm.latency import pinned

CORE = max(os.sched_getaffinity(0))
GONE = 1000 + CORE
"""A core that this machine has not: Linux refuses it as it does one outside of the cpuset."""
_LOST = f"core {GONE} may not be used any more (a cpuset, taskset or hot-unplug)"


@pytest.fixture
def affinity() -> Iterator[set[int]]:
    """The cores of this process, which it has again after the test."""
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


def settings_in(folder: Path, cores: tuple[int, ...] = (CORE,)) -> WorkerSettings:
    target = host_target().to_json()
    return WorkerSettings(cores, 1, target, str(folder / "scratch"), compile=COMPILE_FAULT)


def run(runner: LocalRunner, count: int) -> list[MeasureResult]:
    for number in range(count):
        runner.submit(make_request("none", str(number)))
    results: list[MeasureResult] = []
    while len(results) < count:
        batch = runner.results(timeout=60)
        assert batch, "no result within a minute"
        results += batch
    return results


def test_slot_on_a_lost_core_ends_with_a_line_and_the_others_go_on(tmp_path: Path) -> None:
    told: list[str] = []
    plan = SlotPlan((CORE,), ((GONE,), (CORE,)), alternates=True)
    with LocalRunner(settings_in(tmp_path), plan, notify=told.append) as runner:
        results = run(runner, 3)
    assert {result.status for result in results} == {Status.OK}
    assert {tuple(result.machine["cores"]) for result in results} == {(CORE,)}
    assert told == [f"{_LOST}: what else there is goes on"]


def test_builder_on_a_lost_core_ends_and_the_others_go_on(tmp_path: Path) -> None:
    told: list[str] = []
    plan = SlotPlan((GONE, CORE), ((CORE,),), alternates=True)
    with LocalRunner(settings_in(tmp_path), plan, notify=told.append) as runner:
        results = run(runner, 3)
    assert {result.status for result in results} == {Status.OK}
    assert told == [f"{_LOST}: what else there is goes on"]


@pytest.mark.parametrize(
    ("plan", "lacking"),
    [
        (SlotPlan((CORE,), ((GONE,),)), "measuring slot"),
        (SlotPlan((GONE,), ((CORE,),)), "builder"),
    ],
)
def test_without_a_core_that_is_left_the_job_ends_in_one_line(
    tmp_path: Path, plan: SlotPlan, lacking: str
) -> None:
    with LocalRunner(settings_in(tmp_path), plan) as runner:
        runner.submit(make_request("none"))
        with pytest.raises(MeasureError) as raised:
            runner.results(timeout=60)
    assert raised.value.message == f"no {lacking} is left: {_LOST}"
    assert raised.value.hint == "the same command goes on with the cores that are left"


def test_slot_that_lost_one_of_its_cores_times_nothing(tmp_path: Path) -> None:
    request = make_request("none")
    build = build_candidate(request, host_target(), compile_fault)
    supervisor = Supervisor(settings_in(tmp_path, (CORE, GONE)), MEASURE)
    try:
        with pytest.raises(CoresLostError, match=f"core {GONE} may not"):
            supervisor.measure(request, build)
    finally:
        supervisor.close()
        supervisor.stop()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_affinity_that_somebody_else_reduces_ends_the_slots_outside(
    tmp_path: Path, affinity: set[int]
) -> None:
    low, high = min(affinity), max(affinity)
    told: list[str] = []
    plan = SlotPlan((low, high), ((low,), (high,)), alternates=True)
    with LocalRunner(settings_in(tmp_path), plan, notify=told.append) as runner:
        run(runner, 2)
        os.sched_setaffinity(0, {low})  # as by taskset -p
        results = run(runner, 4)
    assert {tuple(result.machine["cores"]) for result in results} == {(low,)}
    assert told and all(line.startswith(f"core {high} may not be used any more") for line in told)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_what_this_process_does_itself_withdraws_nothing(affinity: set[int]) -> None:
    low, high = min(affinity), max(affinity)
    watch = AffinityWatch()
    assert watch.withdrawn((low, high)) == frozenset()
    with on_cores((low,)):
        assert watch.withdrawn((low, high)) == frozenset()
    assert watch.withdrawn((low, high)) == frozenset()
    os.sched_setaffinity(0, {high})
    assert watch.withdrawn((low, high)) == {low}


def test_pinning_to_a_core_that_is_gone_is_an_error_and_changes_nothing(
    affinity: set[int],
) -> None:
    with pytest.raises(MeasureError, match=f"core {GONE} may not be used"), on_cores((GONE,)):
        raise AssertionError("nothing runs there")
    assert os.sched_getaffinity(0) == affinity
    assert pin((CORE, GONE)) == {GONE}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_models_that_were_moved_while_they_were_timed_are_not_believed(affinity: set[int]) -> None:
    with pytest.raises(MeasureError, match="may not be used any more"), pinned(1):
        (core,) = os.sched_getaffinity(0)
        os.sched_setaffinity(0, affinity - {core})  # as by a cpuset
    assert os.sched_getaffinity(0) == affinity


_CPUSETS = Path("/sys/fs/cgroup/cpuset")


@pytest.fixture
def cpuset() -> Iterator[Path]:
    """A cpuset of all cores of this machine, without processes."""
    folder = _CPUSETS / f"tunefarm-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("cpusets (of version 1) cannot be made here")
    for name in ("cpuset.mems", "cpuset.cpus"):
        (folder / name).write_text((_CPUSETS / name).read_text())
    yield folder
    with suppress(OSError):
        folder.rmdir()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_a_real_cpuset_that_shrinks_ends_the_slot_outside(
    tmp_path: Path, cpuset: Path, affinity: set[int]
) -> None:
    low, high = min(affinity), max(affinity)
    plan = SlotPlan((low, high), ((low,), (high,)), alternates=True)
    told: list[str] = []
    with LocalRunner(settings_in(tmp_path), plan, notify=told.append) as runner:
        run(runner, 2)
        for pid in runner.backend.worker_pids():
            (cpuset / "cgroup.procs").write_text(str(pid))
        (cpuset / "cpuset.cpus").write_text(str(low))
        results = run(runner, 4)
    assert {tuple(result.machine["cores"]) for result in results} == {(low,)}
    assert told and all(line.startswith(f"core {high} may not be used any more") for line in told)
