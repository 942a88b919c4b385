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
    """x * dequantised weights^T + bias: these are [N, K] in blocks along K, low bits first."""
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
    zero, groups = node.optional(3), _groups(node, inner, block)
    if groups is not None or (zero is not None and zero.dtype is not DType.U8):
        if groups is None:
            groups = np.arange(inner) // block
        weight = graph.constant(_floats(node, weights, blocks, groups), data.dtype)
        return _product(node, data, weight, rows, graph)
    scale = graph.reshape(node.input(2), (rows, blocks))
    zero_point = _zero_point(node, rows, blocks, bits)
    weight = graph.emit(
        "dequantize",
        graph.constant(np.ascontiguousarray(weights)),
        scale,
        graph.constant(zero_point),
        to=str(data.dtype),
        axis=1,
        block=block,
    )
    return _product(node, data, weight, rows, graph)


def _product(node: OnnxNode, data: Value, weight: Value, rows: int, graph: GraphBuilder) -> Value:
    """x * weights^T + bias, of any number of axes."""
    matrix = data if data.rank > 1 else graph.reshape(data, (1, data.shape[-1]))
    result = graph.emit("matmul", matrix, weight, transpose_b=True)
    if node.optional(5) is not None:
        result = graph.emit("add", result, node.input(5))
    return graph.reshape(result, (*data.shape[:-1], rows))


def _zero_point(node: OnnxNode, rows: int, blocks: int, bits: int) -> Array:
    """[N, blocks]; the middle of the range where there are none."""
    dtype = _TYPES[bits]
    if node.optional(3) is None:
        return np.full((rows, blocks), 1 << (bits - 1), np.uint8).astype(dtype.numpy)
    given = node.constant(3, "zero points")
    if given.dtype != np.uint8:
        raise node.unsupported("zero points that are not packed as the weights are")
    bytes_of_row = -(-blocks * bits // 8)
    if given.size != rows * bytes_of_row:
        raise node.bad_shape(f"{given.size} bytes are no zero points of {rows}x{blocks} blocks")
    return np.ascontiguousarray(_unpacked(given.reshape(rows, -1), bits)[:, :blocks])


def _unpacked(packed: Array, bits: int) -> Array:
    """Rows of bytes as rows of integers of a few bits, the lowest bits of each byte first."""
    places = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (packed[..., None].view(np.uint8) >> places) & np.uint8((1 << bits) - 1)
    return fields.reshape(packed.shape[0], -1).view(_TYPES[bits].numpy)


def _groups(node: OnnxNode, inner: int, block: int) -> Array | None:
    """The block of each column; None where they follow each other."""
    if node.optional(4) is None:
        return None
    groups = node.constant(4, "groups")[:inner].astype(np.int64)
    if groups.shape != (inner,) or groups.min() < 0 or groups.max() >= -(-inner // block):
        raise node.bad_shape(f"{groups.size} groups for {inner} columns of blocks of {block}")
    return None if np.array_equal(groups, np.arange(inner) // block) else groups


def _floats(node: OnnxNode, weights: Array, blocks: int, groups: Array) -> Array:
    """The weights as f32, by the block of each column: its zero points may be floats."""
    rows = weights.shape[0]
    scale = node.constant(2, "scales").astype(np.float32).reshape(rows, blocks)
    given = node.optional(3)
    if given is not None and given.dtype is not DType.U8:
        zero = node.constant(3, "zero points").astype(np.float32)
        if zero.size != rows * blocks:
            raise node.bad_shape(f"{zero.size} zero points for {rows}x{blocks} blocks")
        zero = zero.reshape(rows, blocks)
    else:
        bits = node.integer("bits", 4)
        zero = _zero_point(node, rows, blocks, bits).astype(np.float32)
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
    bytes_ = np.asarray(packed.reshape(-1), np.uint8)
    codes = np.stack([bytes_ >> 4, bytes_ & 15], axis=1).reshape(-1)[:count]
    table = np.array(_NF4 if kind else (*_FP4, *(-number for number in _FP4)), np.float32)
    each = largest.astype(np.float32).reshape(-1)[np.arange(count) // block]
    weight = graph.constant((table[codes] * each).reshape(rows, inner), data.dtype)
    return _product(node, data, weight, rows, graph)
