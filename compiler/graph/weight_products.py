"""Pass: products with constant quantised weights read these as narrow as the model has them.

    matmul(x, dequantize(q))  -> weight_product(x, packed q)

Between the two may be transposes and reshapes, as where a model has its blocks as an axis.
Evaluated at build time the weights would be 4 to 16 times as large, and a product of a few rows
takes as long as reading them does. In a precision whose products are of 16 bits, weights of 8 bits
become such where they are multiplied with many rows: twice as large, but without unpacking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.kernels.weight_words import WORD
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.operators.weight_product import BITS
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.types.tensor_type import Array

LEAST_WEIGHTS = 1 << 14
"""Fewer weights stay in the first cache as f32, too."""
_PIECE = 1 << 22  # weights that are packed at a time
MANY_ROWS = 16
"""So many products of a weight take longer than reading it twice as wide."""


def run(graph: Graph, rounds_weights: bool = False, halves: Numerics | None = None) -> Graph:
    """The graph with the products that can be; with `rounds_weights` only those in f32.

    Dequantised weights of 16 bits would have been rounded to these before they were multiplied.
    `halves` is a precision whose narrow floats have products that the target sums.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        resolved = rewriter.resolve(node)
        narrow = rewriter.types[node.output].dtype is not DType.F32
        weights = None if rounds_weights and narrow else _weights_of(rewriter, resolved)
        if weights is not None and halves is not None and _is_halved(rewriter, node, halves):
            rows = rewriter.types[node.output].size // weights.numbers.shape[1]
            if rows >= MANY_ROWS and weights.bits == DType.I8.bits:
                weights = None
        if weights is None:
            rewriter.keep(resolved)
        else:
            _multiply(rewriter, resolved, weights)
    return rewriter.finish()


def _is_halved(rewriter: Rewriter, node: Node, numerics: Numerics) -> bool:
    is_f32 = rewriter.types[node.output].dtype is DType.F32
    return is_f32 and numerics.storage_of(node.source) is numerics.narrow


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights [K, N] as signed integers of `bits`; scales and zero points are [blocks, N]."""

    bits: int
    block: int
    numbers: npt.NDArray[np.int8]
    scale: Array
    zero_point: npt.NDArray[np.int8] | None


def _weights_of(rewriter: Rewriter, node: Node) -> _Weights | None:
    """The right operand of a product, if it is dequantised and suits words of 32 bits."""
    if node.operator != "matmul":
        return None
    attributes = complete_attributes(node)
    turned = attributes.flag("transpose_b")
    if attributes.flag("transpose_a") or attributes["accumulator"]:
        return None
    source = rewriter.producers.get(node.inputs[1])
    moves: list[Node] = []
    while source is not None and _is_move(source):
        moves.append(source)
        source = rewriter.producers.get(source.inputs[0])
    if source is None or source.operator != "dequantize":
        return None
    given = [_constant(rewriter, name) for name in source.inputs]
    constants = [array for array in given if array is not None]
    if len(constants) < len(given):
        return None
    stored, scale, *zero_points = constants
    dtype = DType.from_numpy(stored.dtype)
    if not dtype.is_integer or dtype.bits not in BITS or stored.size < LEAST_WEIGHTS:
        return None
    if DType.from_numpy(scale.dtype) is DType.F8E8M0:
        return None
    zero_point = zero_points[0] if zero_points else np.zeros(scale.shape, dtype.numpy)
    operands = (stored, scale, zero_point)
    if stored.ndim == 2 and all(move.operator == "transpose" for move in moves):
        return _in_blocks(source, operands, turned ^ (len(moves) % 2 == 1))
    return _moved(source, operands, moves[::-1], turned)


def _is_move(node: Node) -> bool:
    """A node that gives all elements of its one operand in another order or shape."""
    is_view = operator(node.operator).pattern is Pattern.VIEW and len(node.inputs) == 1
    return is_view or node.operator == "transpose"


def _constant(rewriter: Rewriter, name: str) -> Array | None:
    """A constant, perhaps moved; None for what is computed."""
    node = rewriter.producers.get(name)
    if node is None or not _is_move(node):
        return rewriter.constants.get(name)
    inside = _constant(rewriter, node.inputs[0])
    return None if inside is None else evaluate_node(node, (inside,))


def _in_blocks(
    dequantize: Node, operands: tuple[Array, Array, Array], turned: bool
) -> _Weights | None:
    """Matrices, `turned` or not, whose scales are those of blocks or columns."""
    attributes = complete_attributes(dequantize)
    stored, *given = operands
    dtype = DType.from_numpy(stored.dtype)
    inner = 1 if turned else 0
    block = attributes.integer("block")
    if block and attributes.integer("axis") != inner:
        return None
    per_column = (1, stored.shape[1]) if inner == 0 else (stored.shape[0], 1)
    try:
        shape = given[0].shape if block else per_column
        parameters = [np.broadcast_to(item, shape) for item in given]
    except ValueError:  # a scale for each term of the sum
        return None
    if turned:
        stored, parameters = stored.T, [item.T for item in parameters]
    in_word = WORD.bits // dtype.bits
    block = block or -(-stored.shape[0] // in_word) * in_word
    if block % in_word:
        return None
    scale, zero_point = parameters
    numbers, zeros = _signed(stored, dtype), _signed(zero_point, dtype)
    return _Weights(dtype.bits, block, numbers, scale, zeros if zeros.any() else None)


def _moved(
    dequantize: Node, operands: tuple[Array, Array, Array], moves: Sequence[Node], turned: bool
) -> _Weights | None:
    """The matrix that weights are after these moves, in the longest blocks that have one scale."""
    stored, scale, zero_point = operands
    dtype = DType.from_numpy(stored.dtype)
    parameters = (scale, _signed(zero_point, dtype))
    arrays = [
        _signed(stored, dtype),
        *(of_each(dequantize, parameter, stored.shape) for parameter in parameters),
    ]
    for move in moves:
        arrays = [evaluate_node(move, (np.ascontiguousarray(array),)) for array in arrays]
    if arrays[0].ndim != 2:
        return None
    moved, scale, shifted = (array.T for array in arrays) if turned else arrays
    numbers, zeros = moved.astype(np.int8), shifted.astype(np.int8)
    changes = (scale[1:] != scale[:-1]) | (zeros[1:] != zeros[:-1])
    in_word = WORD.bits // dtype.bits
    starts = np.flatnonzero(changes.any(axis=1)) + 1
    block = int(np.gcd.reduce(starts)) or -(-numbers.shape[0] // in_word) * in_word
    if block % in_word:
        return None
    scale, zeros = scale[::block], zeros[::block]
    return _Weights(dtype.bits, block, numbers, scale, zeros if zeros.any() else None)


def of_each(dequantize: Node, parameter: Array, shape: tuple[int, ...]) -> Array:
    """The scale or zero point of each element of data of this shape."""
    attributes = complete_attributes(dequantize)
    if block := attributes.integer("block"):
        axis = attributes.axis("axis", len(shape))
        repeated = np.repeat(parameter, block, axis=axis)
        return np.take(repeated, np.arange(shape[axis]), axis=axis)
    return np.broadcast_to(parameter, shape)


def _signed(values: Array, dtype: DType) -> npt.NDArray[np.int8]:
    """Integers of a type as signed ones of as many bits: unsigned ones less half of their range."""
    signed = converted(values, DType.I8).astype(np.int8, copy=False)
    if not dtype.is_signed:  # a new array, since its type is another one
        signed.view(np.uint8)[...] -= np.uint8(1 << (dtype.bits - 1))
    return signed


def _multiply(rewriter: Rewriter, node: Node, weights: _Weights) -> None:
    """Emit the product; where the last block is not whole, data and weights are padded."""
    inner = weights.numbers.shape[0]
    missing = -inner % weights.block
    numbers, data = weights.numbers, node.inputs[0]
    if missing:
        numbers = np.pad(numbers, ((0, missing), (0, 0)))
        rank = len(rewriter.types[data].shape)
        pads = (*(0,) * (2 * rank - 1), missing)
        data = rewriter.emit("pad", (data,), {"pads": pads, "mode": "constant"}, like=node)
    constants = [packed(numbers, weights.bits), weights.scale]
    if weights.zero_point is not None:
        constants.append(weights.zero_point)
    hints = ("weight", "scale", "zero_point")
    names = [
        rewriter.constant(array, f"{node.output}_{hint}")
        for array, hint in zip(constants, hints, strict=False)
    ]
    attributes = {"bits": weights.bits, "block": weights.block}
    operands = (data, *names)
    rewriter.emit("weight_product", operands, attributes, like=node, output=node.output)


def packed(numbers: npt.NDArray[np.int8], bits: int) -> npt.NDArray[np.int32]:
    """Signed integers [K, N] as `weight_product` has them in words, [K * bits / 32, N]."""
    in_word, columns = WORD.bits // bits, numbers.shape[1]
    words = np.zeros((numbers.shape[0] // in_word, columns), np.uint32)
    rows = max(1, _PIECE // max(1, in_word * columns))
    for start in range(0, len(words), rows):  # a weight of gigabytes has no copies
        part = words[start : start + rows]
        piece = numbers[start * in_word : (start + len(part)) * in_word]
        fields = (piece.view(np.uint8) + np.uint8(1 << (bits - 1))).reshape(-1, in_word, columns)
        for place in range(in_word):
            part |= fields[:, place].astype(np.uint32) << np.uint32(place * bits)
    return words.view(np.int32)
