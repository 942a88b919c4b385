"""What onnxruntime's optimiser fuses: products, convolutions and activations with what is near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.frontend.converter import Converter, converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.conv import conv
from tunefarm.compiler.frontend.operators.elementwise import PLAIN
from tunefarm.compiler.frontend.operators.matmul import gemm_value, matmul_value, of_joined_rows
from tunefarm.compiler.types.dtypes import DType

DOMAIN = "com.microsoft"
QUICK_GELU = 1.702

# --- activations --------------------------------------------------------------------------------

_ACTIVATIONS = {
    *("Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid"),
    *("Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
}
"""Those that are operators of their own too, with the same parameters."""


def activated(node: OnnxNode, value: Value, given: Sequence[float], graph: GraphBuilder) -> Value:
    """The value after the node's activation, whose parameters are `given` as far as they are."""
    name = node.string("activation", "")
    if not name or name == "Identity":
        return value
    if name == "Clip" and len(given) == 2:
        return graph.emit("clip", value, min=given[0], max=given[1])
    if name not in _ACTIVATIONS:
        raise node.unsupported(f"the activation {name}")
    operator, _, defaults = PLAIN[name]
    return graph.emit(operator, value, **{**defaults, **dict(zip(defaults, given, strict=False))})


def gelu_value(value: Value, graph: GraphBuilder, approximate: str = "none") -> Value:
    """x Phi(x), or its approximation by tanh."""
    return graph.emit("gelu", value, approximate=approximate)


def silu_value(value: Value, graph: GraphBuilder, alpha: float = 1.0) -> Value:
    """x sigmoid(alpha x)."""
    return graph.emit("swish", value, alpha=alpha)


@converter("Gelu", 1, domain=DOMAIN)
def gelu(node: OnnxNode, graph: GraphBuilder) -> Value:
    return gelu_value(node.input(0), graph)


@converter("BiasGelu", 1, domain=DOMAIN)
def bias_gelu(node: OnnxNode, graph: GraphBuilder) -> Value:
    return gelu_value(graph.emit("add", node.input(0), node.input(1)), graph)


@converter("FastGelu", 1, domain=DOMAIN)
def fast_gelu(node: OnnxNode, graph: GraphBuilder) -> Value:
    return gelu_value(_with(node.input(0), node.optional(1), graph), graph, "tanh")


@converter("QuickGelu", 1, domain=DOMAIN)
def quick_gelu(node: OnnxNode, graph: GraphBuilder) -> Value:
    return silu_value(node.input(0), graph, node.floating("alpha", QUICK_GELU))


@converter("ScaledSiLU", 1, domain=DOMAIN)
def scaled_silu(node: OnnxNode, graph: GraphBuilder) -> Value:
    """silu(alpha x) * scale."""
    alpha, value, scale = node.floating("alpha", 1.0), node.input(0), node.optional(1)
    if alpha != 1.0:
        value = graph.emit("mul", value, graph.scalar(alpha, value.dtype))
    result = silu_value(value, graph)
    return result if scale is None else graph.emit("mul", result, graph.cast(scale, value.dtype))


@converter("BiasSplitGelu", 1, domain=DOMAIN)
def bias_split_gelu(node: OnnxNode, graph: GraphBuilder) -> Value:
    """The left half of the channels times gelu of the right one."""
    value = graph.emit("add", node.input(0), node.input(1))
    last, half = value.rank - 1, value.shape[-1] // 2
    if value.shape[-1] % 2:
        raise node.bad_shape(f"{value.type} has no two halves")
    left, right = (graph.part(value, last, start, half) for start in (0, half))
    return graph.emit("mul", left, gelu_value(right, graph))


@converter("BiasAdd", 1, domain=DOMAIN)
def bias_add(node: OnnxNode, graph: GraphBuilder) -> Value:
    return graph.fold("add", [node.input(0), node.input(1), node.input(2)])


@converter("GatedAdd", 1, domain=DOMAIN)
def gated_add(node: OnnxNode, graph: GraphBuilder) -> Value:
    """X + gate * Y."""
    return graph.emit("add", node.input(0), graph.emit("mul", node.input(2), node.input(1)))


@converter("BiasSoftmax", 1, domain=DOMAIN)
def bias_softmax(node: OnnxNode, graph: GraphBuilder) -> Value:
    """softmax(data + bias) over all axes from `axis` on; of an outer bias those before repeat."""
    data, bias = node.input(0), node.input(1)
    axis = node.axis(node.integer("axis", 1), data.rank)
    if axis != data.rank - 1:
        raise node.unsupported("a softmax over several axes")
    return graph.emit("softmax", graph.emit("add", data, bias), axis=axis)


@converter("BiasDropout", 1, domain=DOMAIN)
def bias_dropout(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """data + bias + residual: without training nothing is dropped."""
    training = node.optional(4)
    if training is not None and bool(node.constant(4, "the training mode").reshape(-1)[0]):
        raise node.unsupported("training mode")
    total = _with(graph.emit("add", node.input(0), node.input(1)), node.optional(2), graph)
    if not node.wants(1):
        return [total]
    return [total, graph.emit("expand", graph.scalar(True, DType.BOOL), shape=total.shape)]


@converter("SampleOp", 1, domain=DOMAIN)
def sample_op(node: OnnxNode, graph: GraphBuilder) -> Value:
    return node.input(0)


def _with(value: Value, other: Value | None, graph: GraphBuilder) -> Value:
    return value if other is None else graph.emit("add", value, other)


# --- products -----------------------------------------------------------------------------------


@converter("FusedMatMul", 1, domain=DOMAIN)
@converter("TransposeMatMul", 1, domain=DOMAIN)
def fused_matmul(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha A' B'; with transBatch the first axis of an operand goes behind those of the batch."""
    left, right = node.input(0), node.input(1)
    alpha = node.floating("alpha", 1.0)
    turned = [
        _batch_first(value, graph) if node.integer(f"transBatch{name}", 0) else value
        for name, value in (("A", left), ("B", right))
    ]
    flags = {
        f"transpose_{name.lower()}": bool(node.integer(f"trans{name}", 0)) and value.rank > 1
        for name, value in zip("AB", turned, strict=True)
    }
    if alpha != 1.0 and turned[1].array is not None:
        turned[1] = graph.constant(np.multiply(turned[1].array, alpha), turned[1].dtype)
        alpha = 1.0
    if any(value.rank < 2 for value in turned):
        if any(flags.values()):
            raise node.unsupported("a transposed operand with a vector")
        product = matmul_value(node, turned[0], turned[1], graph)
    else:
        product = graph.emit("matmul", *turned, **flags)
    if alpha == 1.0:
        return product
    return graph.emit("mul", product, graph.scalar(alpha, product.dtype))


def _batch_first(value: Value, graph: GraphBuilder) -> Value:
    """[d0, batch ..., last] as [batch ..., d0, last]."""
    if value.rank < 3:
        return value
    return graph.transpose(value, (*range(1, value.rank - 1), 0, value.rank - 1))


@converter("FusedGemm", 1, domain=DOMAIN)
def fused_gemm(node: OnnxNode, graph: GraphBuilder) -> Value:
    names = [f"activation_{name}" for name in ("alpha", "beta", "gamma")]
    given = [node.floating(name) for name in names if node.has(name)]

    def product(left: Value) -> Value:
        return activated(node, gemm_value(node, left, graph), given, graph)

    return of_joined_rows(node, graph, product)


@converter("MatMulInteger16", 1, domain=DOMAIN)
def matmul_integer16(node: OnnxNode, graph: GraphBuilder) -> Value:
    left, right = (graph.cast(node.input(position), DType.I32) for position in (0, 1))
    return matmul_value(node, left, right, graph)


# --- convolutions -------------------------------------------------------------------------------


@converter("FusedConv", 1, domain=DOMAIN)
def fused_conv(node: OnnxNode, graph: GraphBuilder) -> Value:
    """activation(conv(X, W) + B + Z)."""
    result = conv(replace(node, inputs=node.inputs[:3]), graph)
    assert isinstance(result, Value)
    total = _with(result, node.optional(3), graph)
    return activated(node, total, node.floats("activation_params", ()), graph)


def channels_last(
    node: OnnxNode,
    graph: GraphBuilder,
    convert: Converter,
) -> Value:
    """What a converter makes of data that is turned to channels first, turned back."""
    data = node.input(0)
    first = graph.transpose(data, (0, data.rank - 1, *range(1, data.rank - 1)))
    result = convert(replace(node, inputs=(first, *node.inputs[1:])), graph)
    assert isinstance(result, Value)
    return graph.transpose(result, (0, *range(2, result.rank), 1))


@converter("NhwcConv", 1, domain=DOMAIN)
def nhwc_conv(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Weights have channels last as well."""
    weight = node.input(1)
    first = graph.transpose(weight, (0, weight.rank - 1, *range(1, weight.rank - 1)))
    turned = replace(node, inputs=(node.input(0), first, *node.inputs[2:]))
    return channels_last(turned, graph, conv)
