"""What an address is computed from."""

from __future__ import annotations

import re

import numpy as np
import pytest

from compiler.expr.nodes import Expr, add, binary, integer
from compiler.kernels.evaluate import evaluate_kernel
from compiler.kernels.kernel import FusedKernel, KernelBuilder
from compiler.llvm.emit_kernel import emit_kernel
from compiler.schedule.apply_schedule import lower
from compiler.schedule.schedule import Schedule
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from compiler.target import host_target
from tests.compiler.loops.tiny_kernels import f
from tests.compiler.schedule.small_kernels import f32, inputs_for, run_kernel

WIDTH = 5


def _read_in_rows(divisor: int) -> FusedKernel:
    """y[i] = x[(i + 2) // divisor, (i + 2) % divisor] + 1, of rows of WIDTH."""
    builder = KernelBuilder()
    x = builder.input(f32(23 // divisor + 1, WIDTH))

    def body(i: Expr) -> Expr:
        place, by = add(i, integer(2)), integer(divisor)
        row, column = (binary(op, place, by) for op in ("floordiv", "mod"))
        return binary("add", x[row, column], f(1))

    builder.stage("y", [("i", 20)], body)
    return FusedKernel("read_in_rows", tuple(builder.inputs), tuple(builder.stages), "y")


@pytest.mark.parametrize(("divisor", "divides"), [(WIDTH, False), (WIDTH - 1, True)])
def test_positions_in_whole_rows_are_not_divided_for(divisor: int, divides: bool) -> None:
    kernel, schedule = _read_in_rows(divisor), Schedule((Tile("y", "i", 3), Unroll("y", "i.i")))
    text, _ = emit_kernel(lower(kernel, schedule), host_target(), "kernel")
    assert bool(re.search(r" [su](div|rem) i64", text)) == divides
    inputs = inputs_for(kernel)
    expected = evaluate_kernel(kernel, inputs)
    np.testing.assert_array_equal(run_kernel(kernel, schedule, inputs), expected)
