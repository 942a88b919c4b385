"""What is filled behind sizes: all that is needed, in the order of memory, and no more rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Expr, binary, const, integer, select, unary
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, ValidExtent
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule, naive_schedule
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

ROWS, COLUMNS, HEADS = 12, 40, 3
SIZES = "in1"
TARGET = target_named("x86-64-v3")
BY_ROWS: tuple[ValidExtent, ...] = (ValidExtent(COLUMNS * HEADS, ROWS // HEADS, SIZES, 1),)
"""Rows are of batches, `HEADS` each: so many batches matter."""


def filled(limits: tuple[ValidExtent, ...]) -> FusedKernel:
    """-x[i, j], and 7 behind the columns that are there."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (ROWS, COLUMNS)))
    sizes = builder.input(TensorType(DType.I64, (2,)))

    def body(i: Expr, j: Expr) -> Expr:
        inside = binary("lt", j, sizes[(integer(0),)])
        return select(inside, unary("neg", data[(i, j)]), const(7, DType.F32))

    builder.stage("y", [("i", ROWS), ("j", COLUMNS)], body)
    return builder.kernel("filled", "y", limits)


@pytest.mark.parametrize(
    ("columns", "batches"), [(0, 1), (1, 4), (7, 2), (8, 1), (23, 1), (24, 2), (25, 0), (40, 4)]
)
@pytest.mark.parametrize("is_naive", [True, False])
@pytest.mark.parametrize("behind", [1, 3, COLUMNS])
def test_all_that_is_needed_is_filled(
    columns: int,
    batches: int,
    is_naive: bool,
    behind: int,
) -> None:
    limits = BY_ROWS
    if behind < COLUMNS:
        limits = (*limits, ValidExtent(1, COLUMNS, SIZES, 0, behind))
    kernel = filled(limits)
    schedule = naive_schedule() if is_naive else default_schedule(kernel, TARGET)
    nest = lower(kernel, schedule)
    verify_loops(nest)
    data = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    inputs: dict[str, Any] = {"in0": data, SIZES: np.array([columns, batches])}
    laid = {memory.name: inputs[memory.name].reshape(memory.shape) for memory in nest.inputs}
    found = interpret(nest, laid).reshape(ROWS, COLUMNS)
    wanted = np.where(np.arange(COLUMNS) < columns, -data, np.float32(7))
    needed = slice(0, batches * HEADS), slice(0, columns + behind)
    np.testing.assert_array_equal(found[needed], wanted[needed])
    if is_naive:
        assert np.isnan(found[batches * HEADS :]).all()


def test_rows_are_filled_one_after_the_other_in_vectors() -> None:
    text = format_loops(lower(filled(BY_ROWS), naive_schedule()))
    expected = """\
  for border1.0 in 0..min(12, in1[1] * 3):
    for border1.1 in 0..min(15, (40 - in1[0]) % 16):
      if in1[0] + border1.1 < 40:
        y[border1.0, in1[0] + border1.1] = 7.0
    for border1.1.o in 0..min(2, (40 - in1[0]) // 16):
      vector for border1.1.lane in 0..16:
        y[border1.0, 24 - border1.1.o * 16 + border1.1.lane] = 7.0
"""
    assert expected in text + "\n"


LANES = 8
PLANE = (2, 6, 10)
"""Blocks of `LANES` channels, rows and columns."""


def filled_blocks(behind: int) -> FusedKernel:
    """-x[n, i, j, lane], and 7 behind the rows and columns that are there, so far as needed."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (*PLANE, LANES)))
    sizes = builder.input(TensorType(DType.I64, (2,)))

    def body(n: Expr, i: Expr, j: Expr, lane: Expr) -> Expr:
        value: Expr = unary("neg", data[(n, i, j, lane)])
        for number, place in enumerate((i, j)):
            inside = binary("lt", place, sizes[(integer(number),)])
            value = select(inside, value, const(7, DType.F32))
        return value

    _, rows, columns = PLANE
    axes = [("n", PLANE[0]), ("i", rows), ("j", columns), ("lane", LANES)]
    builder.stage("y", axes, body)
    limits = (
        ValidExtent(LANES, columns, SIZES, 1, behind),
        ValidExtent(LANES * columns, rows, SIZES, 0, behind),
    )
    return builder.kernel("filled", "y", limits)


@pytest.mark.parametrize("there", [(0, 0), (1, 1), (2, 5), (6, 9), (5, 10), (6, 10)])
@pytest.mark.parametrize("behind", [0, 1, 3])
@pytest.mark.parametrize("is_naive", [True, False])
def test_columns_of_a_flattened_block_are_filled_without_conditions(
    there: tuple[int, int], behind: int, is_naive: bool
) -> None:
    kernel = filled_blocks(behind)
    nest = lower(kernel, naive_schedule() if is_naive else default_schedule(kernel, TARGET))
    verify_loops(nest)
    assert "select(" not in format_loops(nest)
    data = np.arange(np.prod(PLANE) * LANES, dtype=np.float32).reshape(*PLANE, LANES)
    inputs: dict[str, Any] = {"in0": data, SIZES: np.array(there)}
    laid = {memory.name: inputs[memory.name].reshape(memory.shape) for memory in nest.inputs}
    found = interpret(nest, laid).reshape(data.shape)
    rows, columns = (
        np.arange(extent) < size for extent, size in zip(PLANE[1:], there, strict=True)
    )
    wanted = np.where((rows[:, None] & columns)[..., None], -data, np.float32(7))
    needed = tuple(slice(0, size + behind) for size in there)
    np.testing.assert_array_equal(found[:, *needed], wanted[:, *needed])
