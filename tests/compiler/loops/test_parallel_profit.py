"""Threads share a limited loop only where the sizes leave enough to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import model, tensor
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, unary
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, KernelCall, ValidExtent
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.loops.ir import For, LoopKind, walk
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.thread_shares import MIN_SHARED_PRODUCTS, STORED
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

ROWS = 64
BY_ROWS = Schedule((Parallelize("exp", "i"),))


def rows_of(columns: int, limited: bool = True) -> FusedKernel:
    """y[i, j] = exp(x[i, j]), of which rows end at a size."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (ROWS, columns)))
    builder.input(TensorType(DType.I64, (1,)))

    def body(*indices: Expr) -> Expr:
        return unary("exp", data[indices])

    builder.stage("exp", [("i", ROWS), ("j", columns)], body)
    limits = (ValidExtent(columns, ROWS, "in1", 0),) if limited else ()
    return builder.kernel("exp", "exp", limits)


def parallel_loop(kernel: FusedKernel, schedule: Schedule = BY_ROWS) -> For:
    nest = lower(kernel, schedule)
    (loop,) = (
        item for item in walk(nest.body) if isinstance(item, For) and item.kind is LoopKind.PARALLEL
    )
    return loop


@pytest.mark.parametrize("rows", [2, 16, 63])
def test_so_many_rows_are_worth_a_second_thread(rows: int) -> None:
    columns = MIN_SHARED_PRODUCTS // STORED // rows
    worth = parallel_loop(rows_of(columns)).worth
    assert isinstance(worth, Binary) and isinstance(worth.left, Const)
    assert worth.left.value in (rows, rows + 1)  # columns are a whole number


def test_rows_each_of_which_is_enough_are_always_shared() -> None:
    """16,384 exponentials are: fewer take less time than a second thread needs to come."""
    assert parallel_loop(rows_of(16_384)).worth is None
    assert parallel_loop(rows_of(16_383)).worth is not None


def test_loops_of_known_extents_stay_as_they_are() -> None:
    kernel = rows_of(8, limited=False)
    assert parallel_loop(kernel).worth is None
    assert "where" not in format_loops(lower(kernel, BY_ROWS))


def test_a_size_that_two_limits_compare_counts_once() -> None:
    kernel = rows_of(32)
    (limit,) = kernel.limits
    wider = replace(limit, extent=2 * ROWS)
    assert (
        parallel_loop(replace(kernel, limits=(limit, wider))).worth == parallel_loop(kernel).worth
    )


@pytest.mark.parametrize("rows", [1, "1..8"])
def test_what_each_step_does_is_shared_however_few_steps_there_are(rows: int | str) -> None:
    gates, units = 4 * 256, 256
    weights = {"w": (1, gates, 8), "r": (1, gates, units)}
    node = helper.make_node("LSTM", ["x", *weights], ["y"], hidden_size=units)
    constants = {name: np.zeros(shape, np.float32) for name, shape in weights.items()}
    proto = model([node], [tensor("x", ("steps", "rows", 8))], constants=constants)
    graph = import_model_proto(proto, {"x": ("1..200", rows, 8)})
    target = target_named("x86-64-v4")
    calls = kernels_of(graph, target).calls
    kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
    (kernel,) = (kernel for kernel in kernels if recurrence_of(kernel) is not None)
    loop = parallel_loop(kernel, default_schedule(kernel, target, 2))
    assert gates * units >= MIN_SHARED_PRODUCTS
    assert loop.variable.startswith("j") and loop.worth is None
