"""What emission may not carry from one instance of an unrolled body to the next."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.loops.tiny_kernels import STEP_KERNELS
from tests.compiler.schedule.small_kernels import inputs_for, run_kernel
from tests.targets import target_named
from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.expr.nodes import Load, add, binary, index, integer, mul
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.loops.ir import (
    Allocate,
    For,
    If,
    LoopKind,
    LoopNest,
    Memory,
    Scope,
    Stmt,
    Store,
)
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Fuse, Tile
from tunefarm.compiler.types.dtypes import DType


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


def nest_of(step: int, buffer: str, *, masked: bool) -> LoopNest:
    """Two vectors of lanes are stored `step` elements apart to a buffer, the result `y` or one in
    registers; of the second vector 5 lanes if `masked`."""
    place = add(mul(index("row"), integer(8)), index("lane"))
    at = mul(index("lane"), integer(step))
    store: Stmt = Store(buffer, (at,), Load(DType.F32, "x", (place,)))
    if masked:
        store = If(binary("lt", place, integer(13)), (store,))
    lanes = For("lane", 0, 8, LoopKind.VECTORISED, (store,))
    local, x, y = (Memory(name, DType.F32, (16,)) for name in ("local", "x", "y"))
    rows = For("row", 0, 2, LoopKind.SERIAL, (Allocate(local, Scope.REGISTER, (lanes,)),))
    return LoopNest("k", (x,), y, (rows,))


def test_lanes_that_are_left_out_are_not_spread_over_registers() -> None:
    target = target_named("x86-64-v3")
    with pytest.raises(LoweringError, match="contiguous in a local buffer"):
        emit_kernel(nest_of(2, "local", masked=True), target, "kernel")
    emit_kernel(nest_of(1, "local", masked=True), target, "kernel")
    emit_kernel(nest_of(2, "local", masked=False), target, "kernel")
    emit_kernel(nest_of(2, "y", masked=True), target, "kernel")
