"""The arena that kernels are timed in: where buffers lie, and what is found in it afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.measure.fault_kernels import COMPILE_FAULT, compile_fault, make_request
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.placement import PERIOD, Placement, buffer_sizes
from tunefarm.measure.sandbox.guarded import view
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import build_candidate
from tunefarm.measure.worker.reference import Reference, ensure_reference
from tunefarm.measure.worker.supervisor import MEASURE, Supervisor
from tunefarm.measure.worker.timing_arena import TimingArena
from tunefarm.measure.worker.workload import Workload

KERNEL = kernel_of([f32(3, 7), f32(3, 7)], [("add", ["x0", "x1"], {})])
NO_OPTIONS: Mapping[str, int] = MappingProxyType({})
APART = Placement((0, 8192, 4096, 12288))


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    return ensure_reference(KERNEL, "key", tmp_path)


@pytest.fixture
def arena(reference: Reference) -> Iterator[TimingArena]:
    found = TimingArena(KERNEL, reference, APART)
    found.make_room(1000)
    yield found
    found.close()


def test_buffers_lie_where_they_are_placed(arena: TimingArena) -> None:
    at = arena.addresses
    assert at["in0"] % 4096 == 0
    assert [at[name] - at["in0"] for name in ("in0", "in1", "output", "workspace")] == [
        *APART.offsets
    ]


def test_further_places_for_the_output_meet_the_same_cache_sets(arena: TimingArena) -> None:
    own = arena.addresses["output"]
    assert arena.outputs(1) == [own]
    places = arena.outputs(5)
    assert places[0] == own and len(set(places)) == 5
    assert {place % PERIOD for place in places} == {own % PERIOD}
    assert arena.outputs(3) == places[:3]
    for place in places:
        view(place, 3 * 7 * 4)[:] = 1  # there is memory
    assert arena.nbytes > 4 * PERIOD


def test_what_is_written_between_buffers_is_found_and_named(arena: TimingArena) -> None:
    arena.prepare(0, 0xFF)
    assert arena.damage() == "" and arena.changed_input(0) == ""
    end = arena.addresses["output"] + 3 * 7 * 4
    view(end, 1)[0] ^= 1
    assert arena.damage() == "wrote 1 byte(s) after the end of output"
    arena.mend()
    assert arena.damage() == ""
    view(arena.addresses["in1"] - 3, 1)[0] ^= 1
    assert arena.damage() == "wrote 3 byte(s) before the start of in1"
    arena.mend()
    view(arena.addresses["workspace"] + 1000, 1)[0] ^= 1
    assert arena.damage() == "wrote 1 byte(s) after the end of workspace"


def test_a_changed_input_is_found_and_mended(arena: TimingArena) -> None:
    arena.prepare(1, 0xFF)
    view(arena.addresses["in1"], 1)[0] ^= 1
    assert arena.changed_input(1) == "in1"
    arena.mend()
    arena.prepare(1, 0xFF)
    assert arena.changed_input(1) == ""


def test_inputs_stay_while_workspaces_change(arena: TimingArena) -> None:
    arena.prepare(1, 0xFF)
    assert np.isnan(arena.output).all()
    for size in (0, 3 * PERIOD, 64):
        arena.make_room(size)
        arena.prepare(1, 0xFF)
        assert arena.changed_input(1) == "" and arena.damage() == ""
        view(arena.addresses["workspace"], size)[:] = 1
        assert arena.damage() == ""


def test_equal_placements_share_an_arena(reference: Reference) -> None:
    workload = Workload(KERNEL, reference)
    packed = Placement.packed(buffer_sizes(KERNEL))
    first, second, third, fourth = workload.arenas([None, APART, APART, packed], 64)
    assert first is fourth and second is third and first is not second
    assert workload.arenas([None], 64) == [first]
    many = [Placement((0, 1024 * n, 512)) for n in range(1, 9)]
    found = workload.arenas(many, 64)
    assert len({arena.addresses["in0"] for arena in found}) == len(many)
    workload.close()


@contextmanager
def supervised(scratch: Path, threads: int = 1, compile: str = "") -> Iterator[Supervisor]:
    settings = WorkerSettings(
        cores=tuple(os.sched_getaffinity(0))[-threads:],
        threads=threads,
        target=host_target().to_json(),
        scratch=str(scratch),
        compile=compile,
    )
    supervisor = Supervisor(settings, MEASURE)
    yield supervisor
    supervisor.close()
    supervisor.stop()


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    with supervised(tmp_path_factory.mktemp("scratch"), compile=COMPILE_FAULT) as found:
        yield found


def measure(
    supervisor: Supervisor,
    *faults: str,
    places: tuple[list[int], ...],
    cache_state: Mapping[str, int] = NO_OPTIONS,
) -> MeasureResult:
    rivals = tuple([["fault", fault]] for fault in faults[1:])
    request = make_request(faults[0])
    options: dict[str, float | int] = {**request.options, **cache_state}
    request = replace(request, rivals=rivals, placements=places, options=options)
    build = build_candidate(request, host_target(), compile_fault)
    assert build.status is Status.OK, build.error
    return supervisor.measure(request, build)


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ("late_overrun", Status.WRONG_RESULT, "wrote 1 byte(s) after the end of output"),
        ("late_underrun", Status.WRONG_RESULT, "byte(s) before the start of output"),
        ("late_writes_input", Status.WRONG_RESULT, "input in0 was modified"),
        ("late_far_overrun", Status.CRASHED, "SIGSEGV"),
    ],
)
def test_what_only_timed_runs_do_wrong_is_found(
    measurer: Supervisor, fault: str, status: Status, text: str
) -> None:
    result = measure(measurer, fault, places=([0, 8192],))
    assert (result.status, result.samples) == (status, ())
    assert text in result.error


@pytest.mark.parametrize(
    ("fault", "status"), [("none", Status.OK), ("late_overrun", Status.WRONG_RESULT)]
)
def test_outputs_that_are_cold_are_checked_too(
    measurer: Supervisor, fault: str, status: Status
) -> None:
    """The right output is where it is looked for, and a canary behind it that is damaged shows."""
    cold = {"idle_bytes": 1 << 30, "model_bytes": 1 << 30}
    assert measure(measurer, "none", fault, places=(), cache_state=cold).status is status


@pytest.mark.parametrize("fault", ["late_overrun", "late_writes_input"])
@pytest.mark.parametrize("culprit", [0, 1])
def test_culprit_of_a_pair_is_the_one_that_does_it_again(
    measurer: Supervisor, fault: str, culprit: int
) -> None:
    faults = ["none", "none"]
    faults[culprit] = fault
    result = measure(measurer, *faults, places=())
    assert (result.status, result.culprit) == (Status.WRONG_RESULT, culprit)


def test_schedules_run_over_the_same_placement_or_each_over_its_own(measurer: Supervisor) -> None:
    near, far = [0, 4096], [64, 12288 + 64]
    packed = "apart 4032"  # 1000 floats, by cache lines
    assert measure(measurer, packed, packed, places=()).status is Status.OK
    assert measure(measurer, "apart 4096", "apart 4096", places=(near,)).status is Status.OK
    assert measure(measurer, "apart 4096", "apart 12288", places=(near, far)).status is Status.OK
    assert measure(measurer, "apart 4096", places=()).status is Status.CRASHED


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        (([0, 100],), "no multiple of 64"),
        (([0, 64],), "overlap"),
        (([0, 1 << 40],), "too far apart"),
        (([0, 4096],) * 3, "3 placements do not fit a request of 2 schedules"),
    ],
)
def test_placement_that_does_not_fit_is_said_and_the_process_stays(
    measurer: Supervisor, places: tuple[list[int], ...], reason: str
) -> None:
    measurer.start()
    pid = measurer.pid
    result = measure(measurer, "none", "none", places=places)
    assert result.status is Status.INFRASTRUCTURE
    assert reason in result.error
    assert measurer.pid == pid


def test_kernels_of_several_threads_run_in_an_arena(tmp_path: Path) -> None:
    kernel = kernel_of([f32(256, 192), f32(192, 160)], [("matmul", ["x0", "x1"], {})], ["x1"])
    space = schedule_space(kernel, host_target(), 2)
    schedule = space.schedule(space.default()).to_json()
    assert "Parallel" in str(schedule)
    request = MeasureRequest(
        "threaded",
        kernel_to_json(kernel),
        workload_key(kernel),
        schedule,
        threads=2,
        options={"samples": 3, "min_sample_seconds": 1e-4},
        rivals=(schedule,),
        placements=([163904, 64], [64, 196672]),
    )
    build = build_candidate(request, host_target())
    with supervised(tmp_path, threads=2) as supervisor:
        result = supervisor.measure(request, build)
    assert (result.status, result.error) == (Status.OK, "")
    assert len(result.samples) == len(result.rivals[0]) >= 3
