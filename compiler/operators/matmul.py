"""Matrix products over stacks of matrices.

Operands narrower than their sums (u8 and i8 in i32, bf16 in f32) come with the attribute
`accumulator`, which is the result's type, too.
"""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import (
    Axes,
    Pattern,
    broadcast_along,
    define,
)
from tunefarm.compiler.operators.rules import (
    broadcast_load,
    check,
    check_dtype,
    product,
    sum_dtype,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import NUMBERS
from tunefarm.compiler.types.tensor_type import TensorType


def _matrix(type: TensorType, transposed: bool) -> tuple[int, int]:
    """The axes that are the rows and columns of an operand's matrices."""
    rank = len(type.shape)
    return (rank - 1, rank - 2) if transposed else (rank - 2, rank - 1)


def _infer_matmul(attributes: Attributes, types: Types) -> TensorType:
    """Padding of the inner axis is 0 in both operands: 0 times NaN would be NaN."""
    left, right = types.present(0), types.present(1)
    check_dtype(left, NUMBERS)
    dtype = sum_dtype(attributes, left, right)
    check(
        min(len(left.shape), len(right.shape)) >= 2,
        "both operands need at least the two axes of a matrix",
    )
    rows, left_inner = _matrix(left, attributes.flag("transpose_a"))
    right_inner, columns = _matrix(right, attributes.flag("transpose_b"))
    inner = (0, left_inner), (1, right_inner)
    extents = " and ".join(str(types.present(operand).shape[axis]) for operand, axis in inner)
    types.same(*inner, otherwise=f"the inner dimensions {extents} differ")
    for place in inner:
        types.fill(*place, "zero")
    batch = types.broadcast(0, 1, but=2)
    return TensorType.of(dtype, (*batch, left.dims[rows], right.dims[columns]))


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
    left = types.present(0)
    _, inner = _matrix(left, attributes.flag("transpose_a"))
    return result.size * left.shape[inner]


def _along(attributes: Attributes, types: Types, axis: int) -> Axes:
    left, right = types.present(0), types.present(1)
    rank = max(len(left.shape), len(right.shape))
    if axis == rank - 2:
        return _matrix(left, attributes.flag("transpose_a"))[0], None
    if axis == rank - 1:
        return None, _matrix(right, attributes.flag("transpose_b"))[1]
    return broadcast_along(types, axis)


define(
    "matmul",
    Pattern.CONTRACTION,
    2,
    _infer_matmul,
    _matmul,
    {"transpose_a": False, "transpose_b": False, "accumulator": ""},
    along=_along,
    work=_work,
    dynamic=True,
)
