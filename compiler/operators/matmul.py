"""Matrix products over stacks of matrices."""

from __future__ import annotations

from compiler.expr.nodes import Expr, mul
from compiler.kernels.kernel import KernelBuilder, Tensor
from compiler.operators.registry import Attributes, Pattern, Tensors, Types, register
from compiler.operators.rules import (
    axes_of,
    bool_attribute,
    broadcast_load,
    broadcast_shapes,
    check,
    check_dtype,
    check_same_dtype,
    given,
    present,
)
from compiler.types.dtypes import NUMBERS
from compiler.types.tensor_type import TensorType


def _matrix(type: TensorType, transposed: bool) -> tuple[int, int]:
    rows, columns = type.shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _infer_matmul(attributes: Attributes, types: Types) -> TensorType:
    left, right = present(types, 0), present(types, 1)
    check_dtype(left, NUMBERS)
    check_same_dtype(left, right)
    check(
        min(len(left.shape), len(right.shape)) >= 2,
        "both operands need at least the two axes of a matrix",
    )
    rows, left_inner = _matrix(left, bool_attribute(attributes, "transpose_a"))
    right_inner, columns = _matrix(right, bool_attribute(attributes, "transpose_b"))
    check(
        left_inner == right_inner,
        f"the inner extents {left_inner} and {right_inner} differ",
    )
    batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return TensorType(left.dtype, (*batch, rows, columns))


def _matmul(
    builder: KernelBuilder, attributes: Attributes, inputs: Tensors, type: TensorType
) -> Tensor:
    left, right = given(inputs, 0), given(inputs, 1)
    transpose_a = bool_attribute(attributes, "transpose_a")
    transpose_b = bool_attribute(attributes, "transpose_b")
    inner = left.shape[-2] if transpose_a else left.shape[-1]
    *batch, rows, columns = type.shape

    def body(*indices: Expr) -> Expr:
        *stack, m, n, k = indices
        of_left = [*stack, *((k, m) if transpose_a else (m, k))]
        of_right = [*stack, *((n, k) if transpose_b else (k, n))]
        return mul(
            broadcast_load(left, of_left, (*batch, *left.shape[-2:])),
            broadcast_load(right, of_right, (*batch, *right.shape[-2:])),
        )

    return builder.stage(
        "matmul",
        [*axes_of(batch, "b"), ("m", rows), ("n", columns)],
        body,
        reduce=[("k", inner)],
        combiner="sum",
    )


register(
    "matmul",
    Pattern.CONTRACTION,
    2,
    _infer_matmul,
    _matmul,
    transpose_a=False,
    transpose_b=False,
)
