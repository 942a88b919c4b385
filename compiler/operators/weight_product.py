"""Matrix products with quantised weights that stay as narrow in memory as they are.

    y[m, n] = sum over k of x[m, k] * (q[k, n] - zero point[k // block, n]) * scale[k // block, n]

The weights, signed integers of 2, 4 or 8 bits, are packed along k: `weight[w, n]`, a word of 32
bits, holds those of consecutive k, each more than 0 by half of its range, the first one in its
lowest bits. They are unpacked in registers where they are multiplied. Scales and zero points are
[K / block, N]. Data narrower than the `accumulator`, which is the result's type, may be multiplied
with weights that are rounded to its type.
"""

from __future__ import annotations

import math

from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.kernels.unpack_weights import fits_tiles
from tunefarm.compiler.kernels.weight_words import WORD, word_term
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Axes,
    Pattern,
    define,
)
from tunefarm.compiler.operators.rules import check, check_dtype, sum_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import FLOATS, DType
from tunefarm.compiler.types.padded_shape import whole
from tunefarm.compiler.types.tensor_type import TensorType

BITS = (2, 4, 8)


def _infer(attributes: Attributes, types: Types) -> TensorType:
    data, weight, scale, zero_point = (*(types.present(n) for n in range(3)), types.optional(3))
    bits, block = attributes.integer("bits"), attributes.integer("block")
    check_dtype(data, FLOATS - {DType.F64}, "the data")
    check_dtype(weight, frozenset((WORD,)), "the weight")
    check_dtype(scale, FLOATS - {DType.F64}, "the scale")
    check(bits in BITS, f"weights have 2, 4 or 8 bits, not {bits}")
    check(len(data.shape) >= 2 and len(weight.shape) == 2, "data and weight are matrices")
    words, columns = weight.shape
    inner = words * (WORD.bits // bits)
    check(data.shape[-1] == inner, f"the inner dimensions {data.shape[-1]} and {inner} differ")
    fits = block > 0 and inner % block == 0 and block * bits % WORD.bits == 0
    check(fits, f"{inner} weights of {bits} bits are no blocks of {block} in whole words")
    check(scale.shape == (inner // block, columns), f"{scale} is no scale for each block")
    if zero_point is not None:
        is_alike = zero_point.dtype is DType.I8 and zero_point.shape == scale.shape
        check(is_alike, f"{zero_point} is no i8 for each block")
    for position in types.positions()[1:]:
        types.require_all_whole(position, "an axis of the weights")
    types.require_whole(0, len(data.shape) - 1, "the axis that is summed")
    return TensorType.of(sum_dtype(attributes, data, data), (*data.dims[:-1], whole(columns)))


def _expression(attributes: Attributes, use: Use) -> Tensor:
    data, weight, scale, zero_point = (*(use.input(n) for n in range(3)), use.optional(3))
    bits, block = attributes.integer("bits"), attributes.integer("block")
    in_half = WORD.bits // bits // 2
    words = block // (2 * in_half)
    *stack, rows, columns = use.shape

    def body(*indices: Expr) -> Expr:
        *row, n, number, word, half, place = indices
        return word_term(
            lambda k: data[(*row, k)],
            lambda word, n: weight[word, n],
            lambda number, n: scale[number, n],
            None if zero_point is None else lambda number, n: zero_point[number, n],
            bits,
            block,
            (n, number, word, half, place),
        )

    reduced = [
        ("block", data.shape[-1] // block),
        ("word", words),
        ("half", 2),
        ("place", in_half),
    ]
    axes = [*axes_of(stack, "b"), ("m", rows), ("n", columns)]
    return use.builder.stage("product", axes, body, reduce=reduced, combiner="sum")


def _work(attributes: Attributes, types: Types, result: TensorType) -> int:
    return result.size * types.present(0).shape[-1]


def _fits_tiles(attributes: Attributes, types: Types) -> bool:
    """Whether data in a narrow type has tiles of rows."""
    *rows, inner = types.present(0).shape
    return fits_tiles(math.prod(rows), inner, types.present(1).shape[1])


def _along(attributes: Attributes, types: Types, axis: int) -> Axes | None:
    rows = axis < len(types.present(0).shape) - 1
    return (axis, *[None] * (len(types) - 1)) if rows else None


define(
    "weight_product",
    Pattern.CONTRACTION,
    (3, 4),
    _infer,
    _expression,
    {"bits": REQUIRED, "block": REQUIRED, "accumulator": ""},
    along=_along,
    work=_work,
    factors=1,
    fits_tiles=_fits_tiles,
    dynamic=True,
)
