"""Matrix products with quantised weights that stay as narrow in memory as they are.

    y[m, n] = sum over k of x[m, k] * (q[k, n] - zero point[k // block, n]) * scale[k // block, n]

The weights, signed integers of 2, 4 or 8 bits, are packed along k: `weight[w, n]`, a word of 32
bits, holds those of consecutive k, each more than 0 by half of its range, the first one in its
lowest bits. They are unpacked in registers where they are multiplied. Scales and zero points are
[K / block, N].
"""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.kernels.weight_words import WORD, word_term
from tunefarm.compiler.operators.padding import PaddedUse
from tunefarm.compiler.operators.registry import REQUIRED, OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check, check_dtype
from tunefarm.compiler.operators.use import Attributes, Types, Use, axes_of
from tunefarm.compiler.types.dims import Dims
from tunefarm.compiler.types.dtypes import FLOATS, DType
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
    whole = block > 0 and inner % block == 0 and block * bits % WORD.bits == 0
    check(whole, f"{inner} weights of {bits} bits are no blocks of {block} in whole words")
    check(scale.shape == (inner // block, columns), f"{scale} is no scale for each block")
    if zero_point is not None:
        fits = zero_point.dtype is DType.I8 and zero_point.shape == scale.shape
        check(fits, f"{zero_point} is no i8 for each block")
    return TensorType(data.dtype, (*data.shape[:-1], columns))


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


def _padding(use: PaddedUse) -> Dims:
    for position in use.present()[1:]:
        for axis in range(2):
            use.require_whole(position, axis, "an axis of the weights")
    data = use.operand(0)
    use.require_whole(0, len(data) - 1, "the axis that is summed")
    return *data[:-1], use.operand(1)[1]


register(
    OperatorDefinition(
        "weight_product",
        Pattern.CONTRACTION,
        (3, 4),
        _infer,
        _expression,
        {"bits": REQUIRED, "block": REQUIRED},
        work=_work,
        padding=_padding,
    )
)
