"""A small recurrence: a state that is multiplied by a matrix at each step."""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.expr.nodes import Expr, add, binary, const, integer, mul, select, sub
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, Tensor
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

STEPS, ROWS, UNITS = 5, 3, 4
Back = Callable[[Tensor, Expr, Expr, Expr], Expr]


def _one_behind(y: Tensor, t: Expr, b: Expr, k: Expr) -> Expr:
    return y[sub(t, integer(1)), b, k]


def recurrent(back: Back = _one_behind, guarded: bool = True) -> FusedKernel:
    """y[t, b, j] = x[t, b, j] + sum over k of back(y)[k] * w[k, j]."""
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (STEPS, ROWS, UNITS)))
    w = builder.input(TensorType(DType.F32, (UNITS, UNITS)), True)
    y = builder.later("y", DType.F32, x.shape)

    def term(t: Expr, b: Expr, j: Expr, k: Expr) -> Expr:
        value = back(y, t, b, k)
        if guarded:
            value = select(binary("eq", t, integer(0)), const(0, DType.F32), value)
        return mul(value, w[k, j])

    axes = [("t", STEPS), ("b", ROWS), ("j", UNITS)]
    p = builder.stage("p", axes, term, reduce=[("k", UNITS)], combiner="sum")
    builder.stage("y", axes, lambda *at: add(x[at], p[at]))
    return builder.kernel("recurrent", "p")
