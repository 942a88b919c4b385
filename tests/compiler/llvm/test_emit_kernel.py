"""What emission may not carry from one instance of an unrolled body to the next."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.loops.tiny_kernels import STEP_KERNELS
from tests.compiler.schedule.small_kernels import inputs_for, run_kernel
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Fuse, Tile


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("vector17", (Tile("y", "i", 5, "shift"), Unroll("y", "i.o"))),
        ("plane", (Fuse("y", ("i", "j"), "f"), Unroll("y", "f"))),
    ],
)
def test_variables_bound_in_an_unrolled_loop_are_those_of_the_instance(
    name: str, steps: tuple[Step, ...]
) -> None:
    """Where a shifted tile begins, and which axes a value of a fused one stands for."""
    kernel, schedule = STEP_KERNELS[name](), Schedule(steps)
    inputs = inputs_for(kernel)
    actual = run_kernel(kernel, schedule, inputs)
    np.testing.assert_array_equal(actual, evaluate_kernel(kernel, inputs))
