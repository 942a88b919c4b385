"""Candidates are built as a build builds them, and travel as bytes that cannot run code."""

from __future__ import annotations

import pickle

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.compiler.schedule.test_fixed_order import DETERMINISTIC, conv
from tests.targets import target_named
from tunefarm.compiler.errors import MeasureError, ScheduleError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.llvm import compile_kernel
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.schedule.fixed_order import sum_orders
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import SpaceCache, fixed_order, schedule_space
from tunefarm.measure.measurement import MeasureRequest
from tunefarm.measure.sandbox.messages import Message, encode
from tunefarm.measure.worker.build_candidate import (
    BuiltCandidate,
    compile_candidate,
    pack_candidates,
    unpack_candidates,
)

CANDIDATES = (
    BuiltCandidate("conv", b"\x7fELF\0", 64, (("w", ConstantLayout(((0, 8),), (0, 2, 1), 4)),)),
    BuiltCandidate("add", b""),
)


def test_candidates_come_back_as_they_were() -> None:
    assert unpack_candidates(pack_candidates(CANDIDATES)) == CANDIDATES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nothing",
        pickle.dumps(CANDIDATES),
        pack_candidates(CANDIDATES)[:-1],
        encode(Message({})),
        encode(Message({"symbol": "f", "workspace_bytes": 0, "constant_layouts": [["w", ["X"]]]})),
        encode(Message({"symbol": "f", "workspace_bytes": 0, "constant_layouts": [["w"]]})),
        encode(Message({"symbol": "f", "workspace_bytes": [], "constant_layouts": []})),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(MeasureError):
        unpack_candidates(data)


def request_of(kernel: FusedKernel, schedule: Schedule, numerics: str) -> MeasureRequest:
    values = kernel_to_json(kernel), workload_key(kernel), schedule.to_json()
    return MeasureRequest("", *values, threads=1, numerics=numerics)


def test_a_trial_runs_the_code_of_a_build_of_its_precision() -> None:
    kernel = kernel_of([f32(8, 64), f32(8, 64)], [("max", ["x0", "x1"], {})])
    spaces = SpaceCache(target_named("x86-64-v3"), 1, DETERMINISTIC)  # in which 0 exceeds -0
    space = spaces.of(kernel, workload_key(kernel))
    schedule = space.schedule(space.default())
    built = compile_kernel(kernel, schedule, spaces.code_target, fixed_rounding=True)
    measured = compile_candidate(request_of(kernel, schedule, DETERMINISTIC), spaces.target)
    other = compile_candidate(request_of(kernel, schedule, "default"), spaces.target)
    assert measured.object_code == built.object_code
    assert other.object_code != measured.object_code


def test_a_schedule_with_sums_in_another_order_is_no_trial_of_a_deterministic_job() -> None:
    target = target_named("x86-64-v3")
    order = fixed_order(conv(), target)
    space = schedule_space(conv(), target, 1)
    schedules = map(space.schedule, map(space.candidate, range(space.size)))
    other = next(item for item in schedules if sum_orders(conv(), item) != order)
    compile_candidate(request_of(conv(), other, "default"), target)
    with pytest.raises(ScheduleError, match="order"):
        compile_candidate(request_of(conv(), other, DETERMINISTIC), target)
