"""Steps of a recurrence run in order, each as a whole: loops that would not are refused."""

from __future__ import annotations

import pytest

from tests.compiler.kernels.recurrent import recurrent
from tests.compiler.loops.tiny_kernels import assert_close, run_loops
from tests.compiler.schedule.small_kernels import inputs_for
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.placement import ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Fuse, Reorder, Tile

ROWS_FIRST = Reorder("y", ("b", "t", "j"))


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (ROWS_FIRST,),
        (ROWS_FIRST, Parallelize("y", "b")),
        (ComputeAt("p", "y", "t", "workspace"), Parallelize("y", "b")),
        (ComputeAt("p", "y", "b"), Parallelize("y", "b")),
        (Tile("y", "b", 2), Reorder("y", ("b.o", "t", "j", "b.i")), ComputeAt("p", "y", "j")),
        (Tile("y", "j", 3), Reorder("y", ("t", "j.o", "b", "j.i")), ComputeAt("p", "y", "b")),
    ],
)
def test_loops_in_the_order_of_the_steps_keep_the_meaning(steps: tuple[Step, ...]) -> None:
    kernel = recurrent()
    inputs = inputs_for(kernel)
    result = run_loops(kernel, Schedule(steps), inputs)
    assert_close(result, evaluate_kernel(kernel, inputs))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((Reorder("y", ("j", "t", "b")),), "read across loop j"),
        ((Parallelize("y", "t"),), "not walked along t"),
        ((Unroll("y", "t"),), "can only be a serial loop"),
        ((Vectorize("y", "t"),), "can only be a serial loop"),
        ((Tile("y", "t", 2),), "not walked along t"),
        ((Fuse("y", ("t", "b"), "f"),), "not walked along t"),
        ((ROWS_FIRST, ComputeAt("p", "y", "b")), "p is computed outside of the steps"),
    ],
)
def test_loops_in_another_order_are_refused(steps: tuple[Step, ...], reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        lower(recurrent(), Schedule(steps))
