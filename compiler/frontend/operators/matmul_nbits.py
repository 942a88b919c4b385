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
    _check_order(node, inner, block)
    check_scale(node, node.input(2), signed=True)
    packed = node.constant(1, "weights")
    if packed.dtype != np.uint8 or packed.size != rows * blocks * block * bits // 8:
        raise node.bad_shape(f"{packed.dtype}{list(packed.shape)} are no {rows}x{inner} weights")
    weights = _unpacked(packed.reshape(rows, -1), bits)[:, :inner]
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
    matrix = data if data.rank > 1 else graph.reshape(data, (1, inner))
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


def _check_order(node: OnnxNode, inner: int, block: int) -> None:
    """Blocks follow each other: an index of groups that says otherwise is refused."""
    if node.optional(4) is None:
        return
    groups = node.constant(4, "groups")
    if not np.array_equal(groups, np.arange(groups.size) // block) or groups.size < inner:
        raise node.unsupported("weights of a block that do not follow each other (g_idx)")
