"""Whatever steps a schedule has: it is refused, or its loops and its code compute the kernel."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.compiler.loops.tiny_kernels import LANES, STEP_KERNELS, run_loops, tiny_kernels
from tests.compiler.schedule.changed_schedules import changed
from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.small_kernels import inputs_for
from tunefarm.compiler.errors import LoweringError, ScheduleError, VerifyError
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.numerics import Algorithm

CHANGES = 20  # of each kernel's schedules
TARGET = replace(host_target(), vector_bytes=4 * LANES, vector_registers=16)
KERNELS = {**{name: make() for name, make in STEP_KERNELS.items()}, **tiny_kernels()}


@pytest.mark.parametrize("name", KERNELS)
def test_a_changed_schedule_is_refused_or_computes_the_kernel(name: str) -> None:
    kernel, rng = KERNELS[name], random.Random(name)
    inputs = inputs_for(kernel)
    expected = evaluate_kernel(kernel, inputs)
    space = schedule_space(kernel, TARGET, threads=2)
    for _ in range(CHANGES):
        schedule = changed(kernel, space.schedule(space.sample(rng)), rng)
        try:
            verify_loops(lower(kernel, schedule))
            outcome = run_guarded(kernel, schedule, inputs, TARGET, threads=2)
        except (ScheduleError, LoweringError, VerifyError):
            continue
        assert not outcome.problem, schedule
        tolerance = 1e-5 if schedule.algorithm is Algorithm.DIRECT else 1e-3
        for actual in (run_loops(kernel, schedule, inputs), outcome.output):
            _assert_close(actual, expected, tolerance, str(schedule))


def _assert_close(
    actual: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float, message: str
) -> None:
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, tolerance, tolerance, err_msg=message)
    else:
        np.testing.assert_array_equal(actual, expected, message)
