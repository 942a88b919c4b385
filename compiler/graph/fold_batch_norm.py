"""Pass: batch normalisation with constant parameters disappears into weights, or into mul and add.

At inference y = (x - mean) / sqrt(var + epsilon) * scale + bias is an affine map per channel,
y = factor * x + shift. After a convolution or matrix product with constant weights (and possibly an
added constant) it scales the weights' output channels; elsewhere it becomes mul and add. Factors
are computed in double precision and rounded once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, use_counts
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

_Doubles = npt.NDArray[np.float64]


@frozen
class _Affine:
    """y = factor * x + shift, one entry per channel (axis 1)."""

    factor: _Doubles
    shift: _Doubles


def run(graph: Graph) -> Graph:
    """The graph without batch_norm nodes, but for those whose parameters are not constant."""
    uses = use_counts(graph)
    producers = {node.output: node for node in graph.nodes}
    folded: dict[str, Node] = {}  # output of the contraction or its add -> the batch_norm after it
    skipped: set[str] = set()
    for node in graph.nodes:
        if _affine(graph, node) is None:
            continue
        chain = _contraction_before(graph, producers, uses, node)
        if chain:
            folded[chain[0].output] = node
            skipped.update(link.output for link in (*chain[1:], node))
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.output in folded:
            norm = folded[node.output]
            between = producers[norm.inputs[0]]
            _emit_scaled(rewriter, node, None if between is node else between, norm)
        elif node.output in skipped:
            continue
        elif (affine := _affine(graph, node)) is not None:
            _emit_mul_add(rewriter, node, affine)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _affine(graph: Graph, node: Node) -> _Affine | None:
    if node.operator != "batch_norm" or any(
        name not in graph.constants for name in node.inputs[1:]
    ):
        return None
    scale, bias, mean, variance = (
        graph.constants[name].astype(np.float64) for name in node.inputs[1:]
    )
    epsilon = complete_attributes(node).floating("epsilon")
    factor = scale / np.sqrt(variance + epsilon)
    return _Affine(factor, bias - mean * factor)


def _contraction_before(
    graph: Graph, producers: dict[str, Node], uses: dict[str, int], norm: Node
) -> list[Node]:
    """[contraction] or [contraction, add] before the norm if it can be folded there, else []."""
    first = producers.get(norm.inputs[0])
    if first is None or uses[first.output] != 1:
        return []
    if _scalable(graph, first, norm):
        return [first]
    if first.operator != "add":
        return []
    for name, other in (first.inputs, first.inputs[::-1]):
        before = producers.get(name)
        if before is None or uses[name] != 1 or other not in graph.constants:
            continue
        if _scalable(graph, before, norm) and _per_channel(graph, other, first.output) is not None:
            return [before, first]
    return []


def _scalable(graph: Graph, node: Node, norm: Node) -> bool:
    """Is it a contraction whose constant weights have the norm's channels as output channels?

    Weights narrower than the sums would be rounded anew.
    """
    if complete_attributes(node).get("accumulator"):
        return False
    if node.operator in ("conv", "conv_transpose"):
        names = node.inputs[1:]
        plain = complete_attributes(node).get("layout", "NCHW") == "NCHW"
        return plain and all(not name or name in graph.constants for name in names)
    if node.operator == "matmul":
        rank = len(graph.types[node.output].shape)
        weight = node.inputs[1]
        return rank == 2 and weight in graph.constants and len(graph.types[weight].shape) == 2
    return False


def _per_channel(graph: Graph, constant: str, result: str) -> _Doubles | None:
    """The constant as one number per channel of `result`, or None if it varies otherwise."""
    shape = graph.types[result].shape
    array = graph.constants[constant]
    aligned = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if any(extent != 1 for axis, extent in enumerate(aligned.shape) if axis != 1):
        return None
    return np.broadcast_to(aligned.reshape(-1).astype(np.float64), (shape[1],)).copy()


def _emit_scaled(rewriter: Rewriter, node: Node, added: Node | None, norm: Node) -> None:
    graph = rewriter.graph
    affine = _affine(graph, norm)
    assert affine is not None
    shift = affine.shift
    if added is not None:
        constant = next(name for name in added.inputs if name in graph.constants)
        offset = _per_channel(graph, constant, added.output)
        assert offset is not None
        shift = shift + offset * affine.factor
    weight = graph.constants[node.inputs[1]]
    dtype = weight.dtype
    scaled = _scaled_weight(node, weight, affine.factor)
    weight_name = rewriter.constant(scaled, f"{node.inputs[1]}_scaled")
    if node.operator == "matmul":
        product = rewriter.keep(replace(node, inputs=(node.inputs[0], weight_name)))
        bias_name = rewriter.constant(shift.astype(dtype), f"{norm.output}_shift")
        rewriter.emit("add", (product, bias_name), like=norm, output=norm.output)
        return
    if len(node.inputs) > 2 and node.inputs[2]:
        shift = shift + graph.constants[node.inputs[2]].astype(np.float64) * affine.factor
    bias_name = rewriter.constant(shift.astype(dtype), f"{norm.output}_shift")
    inputs = (node.inputs[0], weight_name, bias_name)
    rewriter.keep(replace(node, inputs=inputs, output=norm.output))


def _scaled_weight(node: Node, weight: Array, factor: _Doubles) -> Array:
    """Weights times the factor of their output channel; multiplied in double precision."""
    attributes = complete_attributes(node)
    if node.operator == "matmul":
        return _times(weight, factor[:, None] if attributes.flag("transpose_b") else factor)
    spatial = (1,) * (weight.ndim - 2)
    if node.operator == "conv":
        return _times(weight, factor.reshape(-1, 1, *spatial))
    groups = attributes.integer("groups")
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return _times(grouped, factor.reshape(groups, 1, -1, *spatial)).reshape(weight.shape)


def _times(weight: Array, factor: _Doubles) -> Array:
    """The product, rounded once, a few elements at a time."""
    result = np.empty_like(weight)
    np.multiply(weight, factor, out=result, dtype=np.float64, casting="same_kind")
    result.flags.writeable = False  # so that nobody needs a copy
    return result


def _emit_mul_add(rewriter: Rewriter, node: Node, affine: _Affine) -> None:
    type = rewriter.types[node.output]
    shape = (-1,) + (1,) * (len(type.shape) - 2)
    factor = affine.factor.astype(type.dtype.numpy).reshape(shape)
    shift = affine.shift.astype(type.dtype.numpy).reshape(shape)
    factor_name = rewriter.constant(factor, f"{node.output}_factor")
    shift_name = rewriter.constant(shift, f"{node.output}_shift")
    product = rewriter.emit("mul", (rewriter.value(node.inputs[0]), factor_name), like=node)
    rewriter.emit("add", (product, shift_name), like=node, output=node.output)
