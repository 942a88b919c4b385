"""Products with packed weights as products with floats that are unpacked before they are needed.

y[m, n] = sum over k of x[m, k] * (field k of w[n] - half - zero point[n]) * scale[n]
->
weights[word, place, n] = (field `place` of w[word, n] - half - zero point[n]) * scale[n]
y[m, n] = sum over word, place of x[m, word * places + place] * weights[word, place, n]

Every weight is unpacked once for all rows. Terms are the same numbers in both forms.

Data of a narrow type may be multiplied with weights that are rounded to it, packed as the right
factor of a product of matrix tiles, whose steps sum so many `terms`:

weights[group, step, lane * terms + t] = weight of k = step * terms + t, n = group * lanes + lane
y[m, n] = sum over k of x[m, k] * weights[n // lanes, k // terms, n % lanes * terms + k % terms]
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import (
    Expr,
    Load,
    add,
    binary,
    cast,
    const,
    index,
    integer,
    mul,
    select,
    sub,
)
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.kernels.weight_words import WORD, WordProduct, word_number, word_product
from tunefarm.compiler.machine.amx_set_up import FULL_PALETTE
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import is_narrow

UNPACKED = "weights"
"""The stage that holds the weights: as f32, [words, weights of a word, columns], or for tiles."""
SUMMED = "k"
"""The axis of the sum where weights are packed for tiles."""
GROUP, STEP, PLACE = "group", "step", "place"


def fits_tiles(rows: int, inner: int, columns: int) -> bool:
    """Whether matrix tiles (AMX) pay for a product of narrow data with weights that are unpacked.

    Rows fill a tile, for fewer it takes longer to unpack the weights; columns fill a row of sums,
    and the terms have steps that fill a quarter of a tile at least.
    """
    most, lanes = FULL_PALETTE.rows, FULL_PALETTE.row_bytes // DType.F32.bytes
    return rows >= most and columns >= lanes and inner % (most // 2) == 0


def apply_unpack_weights(kernel: FusedKernel, lanes: int = 0, terms: int = 1) -> FusedKernel:
    """The same kernel with its weights unpacked in a stage; `ScheduleError` for another one.

    With several `terms` they are rounded to the type of the data, and packed for tiles of so many
    `lanes`.
    """
    product = word_product(kernel)
    if product is None:
        raise ScheduleError("weights are unpacked of a product that has them packed in words")
    taken = {stage.name for stage in kernel.stages} | {item.name for item in kernel.inputs}
    if UNPACKED in taken:
        raise ScheduleError("the kernel has a stage of unpacked weights already")
    position = [stage.name for stage in kernel.stages].index(product.stage.name)
    if terms == 1:
        made = (_weights(product), _product(product))
    else:
        made = _in_tiles(product, lanes, terms)
    stages = (*kernel.stages[:position], *made, *kernel.stages[position + 1 :])
    return replace(kernel, stages=stages)


def _reduced(product: WordProduct) -> tuple[Axis, Axis]:
    """The words of a column, and the weights of a word."""
    places = WORD.bits // product.bits
    return Axis("word", product.inner // places), Axis("place", places)


def _weights(product: WordProduct) -> Stage:
    words, places = _reduced(product)
    column = product.stage.axes[-1]
    word, place, n = index(words.name), index(places.name), index(column.name)
    packed = Load(WORD, product.weight.buffer, (word, n))
    moved = binary("shr", packed, cast(WORD, mul(place, integer(product.bits))))
    field = binary("and", moved, const((1 << product.bits) - 1, WORD))
    block = binary("floordiv", word, integer(product.block // places.extent))
    if product.block == product.inner:
        block = integer(0)
    middle: Expr = const(1 << (product.bits - 1), WORD)
    if product.zero_point is not None:
        zero = Load(DType.I8, product.zero_point.buffer, (block, n))
        middle = add(middle, cast(WORD, zero))
    scale = cast(DType.F32, Load(product.scale.dtype, product.scale.buffer, (block, n)))
    value = mul(cast(DType.F32, sub(field, middle)), scale)
    return Stage(UNPACKED, (words, places, Axis(column.name, column.extent)), (), "", value)


def _product(product: WordProduct) -> Stage:
    words, places = _reduced(product)
    *rows, column = (index(axis.name) for axis in product.stage.axes)
    word, place = index(words.name), index(places.name)
    k = add(mul(word, integer(places.extent)), place)
    data = cast(DType.F32, Load(product.data.dtype, product.data.buffer, (*rows, k)))
    weight = Load(DType.F32, UNPACKED, (word, place, column))
    return replace(product.stage, reduce_axes=(words, places), body=mul(data, weight))


def _in_tiles(product: WordProduct, lanes: int, terms: int) -> tuple[Stage, Stage]:
    """The stage of weights rounded to the type of the data, and the product that reads them."""
    stage, dtype, column = product.stage, product.data.dtype, product.stage.axes[-1]
    in_half = WORD.bits // product.bits // 2
    if not is_narrow(dtype):
        raise ScheduleError(f"products of {terms} terms need data of a narrow type")
    if lanes < 1 or terms < 1 or in_half % terms:
        sizes = f"{terms} terms in {lanes} lanes"
        raise ScheduleError(f"products of {sizes} do not fit words of {2 * in_half} weights")
    step, place, width = index(STEP), index(PLACE), integer(terms)
    of_half = integer(in_half // terms)
    within = mul(binary("mod", step, of_half), width)
    half = binary("mod", binary("floordiv", step, of_half), integer(2))
    word = binary("floordiv", step, integer(2 * in_half // terms))
    block: Expr = integer(0)
    if product.block < product.inner:
        block = binary("floordiv", step, integer(product.block // terms))
    n = add(mul(index(GROUP), integer(lanes)), binary("floordiv", place, width))
    zero = product.zero_point
    number, reverse = word_number(
        Load(WORD, product.weight.buffer, (word, n)),
        half,
        add(within, binary("mod", place, width)),
        product.bits,
        None if zero is None else Load(zero.dtype, zero.buffer, (block, n)),
    )
    scale = cast(DType.F32, Load(product.scale.dtype, product.scale.buffer, (block, n)))
    value: Expr = cast(dtype, mul(number, mul(scale, reverse)))
    if column.extent % lanes:
        value = select(binary("lt", n, integer(column.extent)), value, const(0, dtype))
    groups = Axis(GROUP, -(-column.extent // lanes))
    axes = (groups, Axis(STEP, product.inner // terms), Axis(PLACE, lanes * terms))
    k, at = index(SUMMED), index(column.name)
    *rows, _ = (index(axis.name) for axis in stage.axes)
    data = cast(DType.F32, Load(dtype, product.data.buffer, (*rows, k)))
    lane = mul(binary("mod", at, integer(lanes)), width)
    packed = (
        binary("floordiv", at, integer(lanes)),
        binary("floordiv", k, width),
        add(lane, binary("mod", k, width)),
    )
    weight = cast(DType.F32, Load(dtype, UNPACKED, packed))
    term = mul(data, weight)
    return (
        Stage(UNPACKED, axes, (), "", value),
        replace(stage, reduce_axes=(Axis(SUMMED, product.inner),), body=term),
    )
