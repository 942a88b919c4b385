"""Threads share a limited loop only where the sizes leave enough to do."""

from __future__ import annotations

import pytest

from tunefarm.compiler.expr.nodes import Binary, Const, Expr, unary
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, ValidExtent
from tunefarm.compiler.loops.ir import For, LoopKind, walk
from tunefarm.compiler.loops.parallel_profit import MIN_SHARED_PRODUCTS, STORED
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.parallelize import Parallelize
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

ROWS = 64


def rows_of(columns: int, limited: bool = True) -> FusedKernel:
    """y[i, j] = exp(x[i, j]), of which rows end at a size."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (ROWS, columns)))
    builder.input(TensorType(DType.I64, (1,)))

    def body(*indices: Expr) -> Expr:
        return unary("exp", data[indices])

    builder.stage("exp", [("i", ROWS), ("j", columns)], body)
    limits = (ValidExtent(columns, ROWS, "in1", 0),) if limited else ()
    return FusedKernel("exp", tuple(builder.inputs), tuple(builder.stages), "exp", limits)


def parallel_loop(kernel: FusedKernel) -> For:
    nest = lower(kernel, Schedule((Parallelize("exp", "i"),)))
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
    assert parallel_loop(rows_of(MIN_SHARED_PRODUCTS // STORED)).worth is None


def test_loops_of_known_extents_stay_as_they_are() -> None:
    kernel = rows_of(8, limited=False)
    assert parallel_loop(kernel).worth is None
    assert "where" not in format_loops(lower(kernel, Schedule((Parallelize("exp", "i"),))))
