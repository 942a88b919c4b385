"""Recurrences are found by their form; those that no order of steps computes are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.kernels.recurrent import ROWS, STEPS, UNITS, Back, recurrent
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.expr.nodes import Expr, add, binary, const, integer, select, sub
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, Tensor
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.kernels.serialize import kernel_from_json, kernel_to_json
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.types.dtypes import DType


def test_what_is_read_back_is_walked_step_by_step() -> None:
    kernel = recurrent()
    verify_kernel(kernel)
    found = recurrence_of(kernel)
    assert found is not None
    assert (found.axis, found.extent, found.stages) == ("t", STEPS, ("p", "y"))
    assert found.apart == {"b"}  # every unit of a step is read for each of the next
    assert recurrence_of(kernel_from_json(kernel_to_json(kernel))) == found


def test_a_recurrence_is_evaluated_in_the_order_of_its_steps() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((STEPS, ROWS, UNITS), np.float32)
    w = rng.standard_normal((UNITS, UNITS), np.float32) / 2
    y = evaluate_kernel(recurrent(), {"in0": x, "in1": w})
    state = np.zeros((ROWS, UNITS))
    for step in range(STEPS):
        state = x[step] + state @ w
        np.testing.assert_allclose(y[step], state, atol=1e-5)


def test_rows_that_read_one_another_are_not_apart() -> None:
    found = recurrence_of(recurrent(lambda y, t, b, k: y[sub(t, integer(1)), integer(0), k]))
    assert found is not None
    assert found.apart == frozenset()


@pytest.mark.parametrize(
    ("back", "reason"),
    [
        (lambda y, t, b, k: y[t, b, k], "not one step behind"),
        (lambda y, t, b, k: y[sub(t, integer(2)), b, k], "not one step behind"),
        (lambda y, t, b, k: y[add(t, integer(1)), b, k], "not one step behind"),
        (lambda y, t, b, k: y[k, b, t], "not one step behind"),
    ],
)
def test_another_distance_is_refused(back: Back, reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        verify_kernel(recurrent(back))


def test_the_first_step_reads_nothing_before_it() -> None:
    with pytest.raises(VerifyError, match="runs over -1"):
        verify_kernel(recurrent(guarded=False))


def test_a_stage_reads_its_siblings_at_its_own_step() -> None:
    builder = KernelBuilder()
    y = builder.later("y", DType.F32, (STEPS, UNITS))
    axes = [("t", STEPS), ("j", UNITS)]
    zero = const(0, DType.F32)

    def before(tensor: Tensor) -> Callable[[Expr, Expr], Expr]:
        return lambda t, j: select(binary("eq", t, integer(0)), zero, tensor[sub(t, integer(1)), j])

    previous = builder.stage("previous", axes, before(y))
    builder.stage("y", axes, before(previous))
    kernel = FusedKernel("late", (), tuple(builder.stages), "y")
    with pytest.raises(VerifyError, match="previous is not read at the step t"):
        verify_kernel(kernel)
