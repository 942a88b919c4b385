"""Scans end where nothing behind is needed, unless they begin there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunefarm.compiler.expr.nodes import Expr, add, binary, const, select
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, ValidExtent
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Vectorize
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.schedule.steps.walks import Scan
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

BATCH, STEPS = 3, 21
SIZES = "in1"


def running(included: str, doubled: bool = False) -> FusedKernel:
    """Running sums along j of x[b, j], with limits on both; twice of them by another stage."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (BATCH, STEPS)))
    builder.input(TensorType(DType.I64, (2,)))
    axes = [("b", BATCH), ("j", STEPS)]

    def term(b: Expr, j: Expr, r: Expr) -> Expr:
        return select(binary(included, r, j), data[(b, r)], const(0, DType.F32))

    summed = builder.stage("y", axes, term, reduce=[("r", STEPS)], combiner="sum")
    if doubled:
        builder.stage("z", axes, lambda b, j: add(summed[(b, j)], summed[(b, j)]))
    limits = (ValidExtent(1, STEPS, SIZES, 1), ValidExtent(STEPS, BATCH, SIZES, 0))
    output = "z" if doubled else "y"
    return builder.kernel("running", output, limits)


def result(kernel: FusedKernel, schedule: Schedule, data: Any, batch: int, steps: int) -> Any:
    nest = lower(kernel, schedule)
    verify_loops(nest)
    inputs = {"in0": data, SIZES: np.array([batch, steps])}
    laid = {memory.name: inputs[memory.name].reshape(memory.shape) for memory in nest.inputs}
    return interpret(nest, laid).reshape(BATCH, STEPS)


SCHEDULES = {
    "plain": (Scan("y"),),
    "tiled": (Scan("y"), Tile("y", "j", 8)),
    "vectors": (Scan("y"), Tile("y", "j", 8), Vectorize("y", "j.i")),
    "side by side": (Scan("y"), Reorder("y", ("j", "b"))),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (2, 16), (2, 19), (3, 21), (0, 4), (2, 0)])
@pytest.mark.parametrize("doubled", [False, True])
def test_scans_hold_what_is_needed(name: str, batch: int, steps: int, doubled: bool) -> None:
    data = np.arange(BATCH * STEPS, dtype=np.float32).reshape(BATCH, STEPS)
    found = result(running("le", doubled), Schedule(SCHEDULES[name]), data, batch, steps)
    wanted = np.cumsum(data, 1) * (2 if doubled else 1)
    np.testing.assert_array_equal(found[:batch, :steps], wanted[:batch, :steps])


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_follows_is_needed_of_scans_from_the_end(name: str) -> None:
    data = np.arange(BATCH * STEPS, dtype=np.float32).reshape(BATCH, STEPS)
    found = result(running("gt"), Schedule(SCHEDULES[name]), data, 2, 5)
    wanted = np.cumsum(data[:, ::-1], 1)[:, ::-1] - data
    np.testing.assert_array_equal(found[:2, :5], wanted[:2, :5])


@pytest.mark.parametrize("name", ["plain", "side by side"])
def test_a_scan_ends_with_its_sizes(name: str) -> None:
    data = np.ones((BATCH, STEPS), np.float32)
    found = result(running("le"), Schedule(SCHEDULES[name]), data, 2, 5)
    needed = np.zeros((BATCH, STEPS), np.bool_)
    needed[:2, :5] = True
    np.testing.assert_array_equal(~np.isnan(found), needed)


def test_what_is_carried_is_filled_for_what_is_needed() -> None:
    text = format_loops(lower(running("le"), Schedule(SCHEDULES["side by side"])))
    assert text.count("for b in 0..min(3, in1[0])") == 2
    assert "for j in 0..min(21, in1[1])" in text


def test_a_scan_that_others_read_ends_with_them() -> None:
    text = format_loops(lower(running("le", doubled=True), Schedule(SCHEDULES["plain"])))
    assert text.count("for j in 0..min(21, in1[1])") == 2
    assert text.count("for b in 0..min(3, in1[0])") == 2


def test_a_scan_without_sizes_stays_as_it_is() -> None:
    kernel = replace(running("le"), limits=())
    assert "min(" not in format_loops(lower(kernel, Schedule(SCHEDULES["tiled"])))
