"""Matrix products over stacks of matrices.

Operands narrower than their sums (u8 and i8 in i32, bf16 in f32) come with the attribute
`accumulator`, which is the result's type, too.
"""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.padding import PaddedUse
from tunefarm.compiler.operators.registry import OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import (
    broadcast_load,
    broadcast_shapes,
    check,
    check_dtype,
    product,
    sum_dtype,
)
from tunefarm.compiler.operators.use import Attributes, Types, Use, axes_of
from tunefarm.compiler.types.dims import Dims
from tunefarm.compiler.types.dtypes import NUMBERS
from tunefarm.compiler.types.tensor_type import TensorType


def _matrix(type: TensorType, transposed: bool) -> tuple[int, int]:
    rows, columns = type.shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _infer_matmul(attributes: Attributes, types: Types) -> TensorType:
    left, right = types.present(0), types.present(1)
    check_dtype(left, NUMBERS)
    dtype = sum_dtype(attributes, left, right)
    check(
        min(len(left.shape), len(right.shape)) >= 2,
        "both operands need at least the two axes of a matrix",
    )
    rows, left_inner = _matrix(left, attributes.flag("transpose_a"))
    right_inner, columns = _matrix(right, attributes.flag("transpose_b"))
    check(left_inner == right_inner, f"the inner dimensions {left_inner} and {right_inner} differ")
    batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return TensorType(dtype, (*batch, rows, columns))


def _matmul(attributes: Attributes, use: Use) -> Tensor:
    left, right = use.input(0), use.input(1)
    transpose_a = attributes.flag("transpose_a")
    transpose_b = attributes.flag("transpose_b")
    inner = left.shape[-2] if transpose_a else left.shape[-1]
    *batch, rows, columns = use.shape

    def body(*indices: Expr) -> Expr:
        *stack, m, n, k = indices
        of_left = [*stack, *((k, m) if transpose_a else (m, k))]
        of_right = [*stack, *((n, k) if transpose_b else (k, n))]
        return product(
            attributes,
            broadcast_load(left, of_left, (*batch, *left.shape[-2:])),
            broadcast_load(right, of_right, (*batch, *right.shape[-2:])),
        )

    return use.builder.stage(
        "matmul",
        [*axes_of(batch, "b"), ("m", rows), ("n", columns)],
        body,
        reduce=[("k", inner)],
        combiner="sum",
    )


def _work(attributes: Attributes, types: Types, result: TensorType) -> int:
    _, inner = _matrix(types.present(0), attributes.flag("transpose_a"))
    return result.size * inner


def _matmul_padding(use: PaddedUse) -> Dims:
    """Padding of the inner axis is 0 in both operands: 0 times NaN would be NaN."""
    left, right = use.operand(0), use.operand(1)
    turned = use.attributes.flag("transpose_a"), use.attributes.flag("transpose_b")
    rows, left_inner = (-1, -2) if turned[0] else (-2, -1)
    right_inner, columns = (-1, -2) if turned[1] else (-2, -1)
    batch = use.broadcast(0, 1, but=2)
    inner = ((0, len(left) + left_inner), (1, len(right) + right_inner))
    use.same(*inner)
    for place in inner:
        use.fill(*place, "zero")
    return *batch, left[rows], right[columns]


register(
    OperatorDefinition(
        "matmul",
        Pattern.CONTRACTION,
        2,
        _infer_matmul,
        _matmul,
        {"transpose_a": False, "transpose_b": False, "accumulator": ""},
        work=_work,
        padding=_matmul_padding,
    )
)
