"""MatMulNBits of onnxruntime's own operators: a product with weights of a few bits each."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.quantise import check_scale
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

_TYPES = {2: DType.U2, 4: DType.U4, 8: DType.U8}


@converter("MatMulNBits", 1, domain="com.microsoft")
def matmul_nbits(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x * dequantised weights^T + bias: these are [N, K] in blocks along K, low bits first.

    `g_idx` has the block of each of the K. Where blocks are equally large, data and weights are put
    in their order, so that weights stay as narrow as they are.
    """
    rows, inner, bits = node.integer("N"), node.integer("K"), node.integer("bits", 4)
    block = node.integer("block_size")
    if bits not in _TYPES:
        raise node.unsupported(f"weights of {bits} bits")
    if rows < 1 or inner < 1 or block < 1 or block * bits % 8:
        raise node.invalid(f"N {rows}, K {inner} and block_size {block} make no matrix of bytes")
    data, blocks = node.input(0), -(-inner // block)
    if data.shape[-1:] != (inner,):
        raise node.bad_shape(f"{data.type} has not {inner} columns")
    check_scale(node, node.input(2))
    packed = node.constant(1, "weights")
    if packed.dtype != np.uint8 or packed.size != rows * blocks * block * bits // 8:
        raise node.bad_shape(f"{packed.dtype}{list(packed.shape)} are no {rows}x{inner} weights")
    weights = _unpacked(packed.reshape(rows, -1), bits)[:, :inner]
    data = _matrix(data, graph)
    groups = _groups(node, inner, block)
    order = np.argsort(groups, kind="stable")
    if not np.array_equal(groups[order], np.arange(inner) // block):
        weight = graph.constant(_floats(node, weights, blocks, groups, graph), data.dtype)
        return _with_bias(node, graph.emit("matmul", data, weight, transpose_b=True), graph)
    if not np.array_equal(order, np.arange(inner)):
        weights = weights[:, order]
        data = graph.emit("gather", data, graph.constant(order), axis=data.rank - 1)
    return _with_bias(node, _by_blocks(node, data, weights, block, graph), graph)


def _by_blocks(
    node: OnnxNode, data: Value, weights: Array, block: int, graph: GraphBuilder
) -> Value:
    """The product with integers in blocks that follow each other.

    Zero points z that are floats are a product of their own, m being the middle of the integers:
    x (w - z) s = x (w - m) s - (the sum of x over each block) (z - m) s.
    """
    (rows, inner), bits = weights.shape, node.integer("bits", 4)
    blocks, last = -(-inner // block), data.rank - 1
    scale = graph.reshape(node.input(2), (rows, blocks))
    zero, middle = _zero_points(node, rows, blocks), 1 << (bits - 1)
    stored = np.full((rows, blocks), middle, np.uint8) if zero.dtype == np.float32 else zero
    weight = graph.emit(
        "dequantize",
        graph.constant(np.ascontiguousarray(weights)),
        scale,
        graph.constant(stored.astype(_TYPES[bits].numpy)),
        to=str(data.dtype),
        axis=1,
        block=block,
    )
    result = graph.emit("matmul", data, weight, transpose_b=True)
    if zero.dtype != np.float32:
        return result
    wide, missing = graph.cast(data, DType.F32), blocks * block - inner
    if missing:
        wide = graph.emit("pad", wide, pads=(*(0,) * (data.rank + last), missing))
    wide = graph.reshape(wide, (*data.shape[:-1], blocks, block))
    sums = graph.emit("reduce_sum", wide, axes=(last + 1,), keepdims=False)
    distance = graph.constant(np.subtract(zero, np.float32(middle)))
    factor = graph.emit("mul", distance, graph.cast(scale, DType.F32))
    shifted = graph.emit("matmul", sums, factor, transpose_b=True)
    return graph.cast(graph.emit("sub", graph.cast(result, DType.F32), shifted), data.dtype)


def _matrix(data: Value, graph: GraphBuilder) -> Value:
    return data if data.rank > 1 else graph.reshape(data, (1, *data.shape))


def _with_bias(node: OnnxNode, result: Value, graph: GraphBuilder) -> Value:
    """The product plus the bias, with as many axes as the data has."""
    if node.optional(5) is not None:
        result = graph.emit("add", result, node.input(5))
    return result if node.input(0).rank > 1 else graph.reshape(result, result.shape[1:])


def _zero_points(node: OnnxNode, rows: int, blocks: int) -> Array:
    """[N, blocks] as u8, the middle of the range where there are none, or as f32."""
    bits = node.integer("bits", 4)
    if node.optional(3) is None:
        return np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    given = node.constant(3, "zero points")
    if given.dtype != np.uint8:
        if given.size != rows * blocks or not np.isfinite(given.astype(np.float32)).all():
            raise node.bad_shape(
                f"{given.size} zero points for {rows}x{blocks} blocks, or no numbers"
            )
        return given.astype(np.float32).reshape(rows, blocks)
    bytes_of_row = -(-blocks * bits // 8)
    if given.size != rows * bytes_of_row:
        raise node.bad_shape(f"{given.size} bytes are no zero points of {rows}x{blocks} blocks")
    return _unpacked(given.reshape(rows, -1), bits)[:, :blocks].astype(np.uint8)


def _unpacked(packed: Array, bits: int) -> Array:
    """Rows of bytes as rows of integers of a few bits, the lowest bits of each byte first."""
    places = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (packed[..., None].view(np.uint8) >> places) & np.uint8((1 << bits) - 1)
    return fields.reshape(packed.shape[0], -1).view(_TYPES[bits].numpy)


def _groups(node: OnnxNode, inner: int, block: int) -> Array:
    """The block of each column."""
    if node.optional(4) is None:
        return np.arange(inner) // block
    groups = node.constant(4, "groups").reshape(-1)[:inner].astype(np.int64)
    if groups.shape != (inner,) or groups.min() < 0 or groups.max() >= -(-inner // block):
        raise node.bad_shape(f"{groups.size} groups for {inner} columns of blocks of {block}")
    return groups


def _floats(
    node: OnnxNode, weights: Array, blocks: int, groups: Array, graph: GraphBuilder
) -> Array:
    """The weights as f32, by the block of each column."""
    rows = weights.shape[0]
    graph.check_array(weights.shape, 4)
    scale = node.constant(2, "scales").astype(np.float32).reshape(rows, blocks)
    zero = _zero_points(node, rows, blocks).astype(np.float32)
    numbers: Array = (weights.astype(np.float32) - zero[:, groups]) * scale[:, groups]
    return numbers


_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""What the 16 codes of a weight stand for, in parts of the largest number of its block."""


@converter("MatMulBnb4", 1, domain="com.microsoft")
def matmul_bnb4(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x * weights^T: these are 4-bit codes of floats, [N, K] in blocks, high bits first."""
    rows, inner = node.integer("N"), node.integer("K")
    block, kind = node.integer("block_size"), node.integer("quant_type")
    data = node.input(0)
    if rows < 1 or inner < 1 or block < 1:
        raise node.invalid(f"N {rows}, K {inner} and block_size {block} make no matrix")
    if data.shape[-1:] != (inner,):
        raise node.bad_shape(f"{data.type} has not {inner} columns")
    if kind not in (0, 1):
        raise node.invalid(f"quant_type is {kind}, which is neither 0 (FP4) nor 1 (NF4)")
    if not node.integer("transB", 1):
        raise node.unsupported("weights that are not transposed (transB=0)")
    packed, largest = node.constant(1, "weights"), node.constant(2, "largest numbers")
    count = rows * inner
    if packed.dtype != np.uint8 or packed.size != -(-count // 2):
        raise node.bad_shape(f"{packed.dtype}{list(packed.shape)} are no {rows}x{inner} weights")
    if largest.size != -(-count // block):
        raise node.bad_shape(f"{largest.size} largest numbers for blocks of {block}")
    graph.check_array((rows, inner), 4)
    bytes_ = np.asarray(packed.reshape(-1), np.uint8)
    codes = np.stack([bytes_ >> 4, bytes_ & 15], axis=1).reshape(-1)[:count]
    table = np.array(_NF4 if kind else (*_FP4, *(-number for number in _FP4)), np.float32)
    each = largest.astype(np.float32).reshape(-1)[np.arange(count) // block]
    weight = graph.constant((table[codes] * each).reshape(rows, inner), data.dtype)
    data = _matrix(data, graph)
    return _with_bias(node, graph.emit("matmul", data, weight, transpose_b=True), graph)
