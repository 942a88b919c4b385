"""Vectors that are rounded, shifted by a zero point and clipped are those of their definition."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.schedule.guarded_run import run_guarded, targets
from tunefarm.compiler.expr.nodes import Expr, binary, cast, const, unary
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

EXTREMES = [np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 2.0**24 + 2, -(2.0**24) - 2]
HALVES = [sign * (whole + 0.5) for whole in (0, 1, 2, 3, 122, 126, 127, 254) for sign in (1, -1)]


def _quantised(to: DType, zero_point: int, extent: int) -> FusedKernel:
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (extent,)))
    low, high = to.limits

    def body(i: Expr) -> Expr:
        value = unary("round", x[i])
        if zero_point:
            value = binary("add", value, const(float(zero_point), DType.F32))
        value = binary("max", value, const(float(low), DType.F32))
        return cast(to, binary("min", value, const(float(high), DType.F32)))

    builder.stage("y", [("i", extent)], body)
    return builder.kernel("quantised", "y")


@pytest.mark.parametrize("target", targets().values(), ids=targets())
@pytest.mark.parametrize(
    ("to", "zero_point"), [(DType.U8, 0), (DType.U8, 131), (DType.I8, 0), (DType.I8, -7)]
)
def test_rounded_vectors_are_clipped_as_their_definition_says(
    target: Target, to: DType, zero_point: int
) -> None:
    drawn = np.random.default_rng(0).uniform(-300, 300, 83)
    x = np.concatenate([EXTREMES, HALVES, drawn]).astype(np.float32)
    kernel = _quantised(to, zero_point, x.size)
    outcome = run_guarded(kernel, default_schedule(kernel, target), {"in0": x}, target)
    assert not outcome.problem
    np.testing.assert_array_equal(outcome.output, evaluate_kernel(kernel, {"in0": x}), strict=True)
