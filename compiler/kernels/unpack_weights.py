"""Products with packed weights as products with floats that are unpacked before they are needed.

y[m, n] = sum over k of x[m, k] * (field k of w[n] - half - zero point[n]) * scale[n]
->
weights[word, place, n] = (field `place` of w[word, n] - half - zero point[n]) * scale[n]
y[m, n] = sum over word, place of x[m, word * places + place] * weights[word, place, n]

Every weight is unpacked once for all rows. Terms are the same numbers in both forms.
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
    sub,
)
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.kernels.weight_words import WORD, WordProduct, word_product
from tunefarm.compiler.types.dtypes import DType

UNPACKED = "weights"
"""The stage that holds the weights as f32, [words, weights of a word, columns]."""


def apply_unpack_weights(kernel: FusedKernel) -> FusedKernel:
    """The same kernel with its weights unpacked in a stage; `ScheduleError` for another one."""
    product = word_product(kernel)
    if product is None:
        raise ScheduleError("weights are unpacked of a product that has them packed in words")
    taken = {stage.name for stage in kernel.stages} | {item.name for item in kernel.inputs}
    if UNPACKED in taken:
        raise ScheduleError("the kernel has a stage of unpacked weights already")
    position = [stage.name for stage in kernel.stages].index(product.stage.name)
    made = (_weights(product), _product(product))
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
