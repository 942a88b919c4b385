"""What emission may not carry from one instance of an unrolled body to the next."""

from __future__ import annotations

import numpy as np

from compiler.kernels.evaluate import evaluate_kernel
from compiler.schedule.schedule import Schedule
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from tests.compiler.loops.tiny_kernels import STEP_KERNELS
from tests.compiler.schedule.small_kernels import inputs_for, run_kernel


def test_a_shifted_tile_in_an_unrolled_loop_begins_where_its_instance_says() -> None:
    """The last of four tiles of 5 begins at 12, not at 15, which only a bound variable knows."""
    kernel = STEP_KERNELS["vector17"]()
    schedule = Schedule((Tile("y", "i", 5, "shift"), Unroll("y", "i.o")))
    inputs = inputs_for(kernel)
    actual = run_kernel(kernel, schedule, inputs)
    np.testing.assert_array_equal(actual, evaluate_kernel(kernel, inputs))
