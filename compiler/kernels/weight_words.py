"""Terms of products with weights packed in words: how they are written, and found again.

A word of 32 bits holds the weights of consecutive k, each more than 0 by half of its range, the
first one in its lowest bits. A half of a word has few bits enough for a mantissa: what lies at a
place p of one, and nothing else of it, is the float 2^23 + u 2^p with the bits of 2^23 next to it.
"""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    add,
    binary,
    cast,
    const,
    index,
    integer,
    mul,
    sub,
    unary,
)
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

WORD = DType.I32
"""What weights are packed in."""
_MANTISSA = 23  # bits of f32's
_ONE = 127 << _MANTISSA  # the bits of 1.0


@frozen
class WordProduct:
    """sum over k of data[.., k] * (q[k, n] - zero point[block of k, n]) * scale[block of k, n].

    The factors are given as they are loaded, the first one at the axes `block, word, half, place`.
    """

    stage: Stage
    bits: int
    block: int
    data: Load
    weight: Load
    scale: Load
    zero_point: Load | None

    @property
    def inner(self) -> int:
        """Terms of the sum."""
        return self.stage.reduce_axes[0].extent * self.block


def word_term(
    data: Callable[[Expr], Expr],
    weight: Callable[[Expr, Expr], Expr],
    scale: Callable[[Expr, Expr], Expr],
    zero_point: Callable[[Expr, Expr], Expr] | None,
    bits: int,
    block: int,
    indices: tuple[Expr, Expr, Expr, Expr, Expr],
) -> Expr:
    """A term of the sum; the factors are functions of k, and of a row and a column.

    `indices` are the column, the block, the word of it, the half and the place there. Unpacking is
    exact: x is multiplied with 2^-p, once for all columns.
    """
    n, number, word, half, place = indices
    in_half = WORD.bits // bits // 2
    words = block // (2 * in_half)
    packed = weight(add(mul(number, integer(words)), word), n)
    k = add(mul(number, integer(block)), mul(word, integer(2 * in_half)))
    k = add(add(k, mul(half, integer(in_half))), place)
    zero = None if zero_point is None else zero_point(number, n)
    value, reverse = word_number(packed, half, place, bits, zero)
    return mul(mul(data(k), reverse), mul(value, scale(number, n)))


def word_number(
    packed: Expr, half: Expr, place: Expr, bits: int, zero_point: Expr | None
) -> tuple[Expr, Expr]:
    """(q - zero point) 2^p as a float, exactly, and 2^-p: of the weight at bit p of a half."""
    shift = cast(WORD, mul(place, integer(bits)))
    moved = binary("shr", packed, cast(WORD, mul(half, integer(WORD.bits // 2))))
    field = binary("and", moved, binary("shl", _word((1 << bits) - 1), shift))
    middle = binary("shl", _word(1 << (bits - 1)), shift)
    value = sub(_beside_2_23(field), _beside_2_23(middle))
    if zero_point is not None:
        power = unary("of_bits", add(_word(_ONE), binary("shl", shift, _word(_MANTISSA))))
        value = sub(value, mul(cast(DType.F32, zero_point), power))
    reverse = unary("of_bits", sub(_word(_ONE), binary("shl", shift, _word(_MANTISSA))))
    return value, reverse


def word_product(kernel: FusedKernel) -> WordProduct | None:
    """The anchor as such a sum, None where it is something else."""
    stage = kernel.stage(kernel.anchor)
    body = stage.body
    if stage.combiner != "sum" or len(stage.reduce_axes) != 4 or len(stage.axes) < 2:
        return None
    if stage.accumulator is not None or stage.dtype is not DType.F32:
        return None
    if not isinstance(body, Binary) or not all(
        isinstance(side, Binary) and side.op == "mul" for side in (body.left, body.right)
    ):
        return None
    assert isinstance(body.left, Binary) and isinstance(body.right, Binary)
    weights = [load for load in loads(body.right.left) if load.dtype is WORD]
    zeros = [load for load in loads(body.right.left) if load.dtype is DType.I8]
    data, scale = _loaded(body.left.left), _loaded(body.right.right)
    if data is None or scale is None or len(weights) != 1 or len(zeros) > 1:
        return None
    _, word, _, place = stage.reduce_axes
    bits = WORD.bits // (2 * place.extent)
    block = word.extent * 2 * place.extent
    zero = zeros[0] if zeros else None
    found = WordProduct(stage, bits, block, data, weights[0], scale, zero)
    return found if product_term(found) == body else None


def _loaded(factor: Expr) -> Load | None:
    """What is loaded for a factor in f32, perhaps from a narrower type."""
    if isinstance(factor, Cast):
        factor = factor.operand
    return factor if isinstance(factor, Load) else None


def product_term(product: WordProduct) -> Expr:
    """The term of a product with these factors, at the axes of its stage."""
    *rows, column = (index(axis.name) for axis in product.stage.axes)

    def read(load: Load, *indices: Expr) -> Expr:
        return Load(load.dtype, load.buffer, indices)

    zero = product.zero_point
    return word_term(
        lambda k: cast(DType.F32, read(product.data, *rows, k)),
        lambda word, n: read(product.weight, word, n),
        lambda number, n: cast(DType.F32, read(product.scale, number, n)),
        None if zero is None else lambda number, n: read(zero, number, n),
        product.bits,
        product.block,
        (
            column,
            *(index(axis.name) for axis in product.stage.reduce_axes),  # type: ignore[arg-type]
        ),
    )


def _word(value: int) -> Const:
    return const(value, WORD)


def _beside_2_23(field: Expr) -> Expr:
    """The float 2^23 + field, of a field of at most 16 bits."""
    return unary("of_bits", binary("or", field, _word(150 << _MANTISSA)))
