"""The QOperator form of a quantised model: operators on integers instead of floats.

    Conv(Dequantize(x), Dequantize(w), Dequantize(b)) -> Quantize   becomes   QLinearConv

and so for products, additions and others, those of com.microsoft where ONNX has none. Operators
that only move elements read and give integers as they are. What has no such form stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

_OURS = {
    "Add": "QLinearAdd",
    "Mul": "QLinearMul",
    "Sigmoid": "QLinearSigmoid",
    "LeakyRelu": "QLinearLeakyRelu",
    "GlobalAveragePool": "QLinearGlobalAveragePool",
    "Concat": "QLinearConcat",
    "Gemm": "QGemm",
}
_MOVED = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice")


def with_qoperators(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in QOperator form, without what nothing reads any more; checked by onnx.checker."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    producers = {output: node for node in graph.node for output in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    nodes: list[onnx.NodeProto] = []
    replaced: set[str] = set()  # outputs of the quantizations that operators do themselves
    for node in graph.node:
        if node.output[0] in replaced:
            continue
        after = readers.get(node.output[0], [])
        quantize = after[0] if [item.op_type for item in after] == ["QuantizeLinear"] else None
        written = None if quantize is None else _on_integers(node, quantize, producers)
        if written is None or quantize is None:
            nodes.append(node)
        else:
            replaced.add(quantize.output[0])
            nodes.append(written)
    kept = _needed(nodes, {value.name for value in graph.output})
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    constants = [item for item in graph.initializer if item.name in used]
    del graph.initializer[:]
    graph.initializer.extend(constants)
    if any(node.domain for node in kept):
        result.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.checker.check_model(result)
    return result


def _on_integers(
    node: onnx.NodeProto, quantize: onnx.NodeProto, producers: dict[str, onnx.NodeProto]
) -> onnx.NodeProto | None:
    """The node as one on integers that gives what `quantize` gave; None where there is none."""
    operands: list[list[str]] = []
    for position, name in enumerate(node.input):
        before = producers.get(name)
        if before is not None and before.op_type == "DequantizeLinear":
            operands.append(list(before.input))
        elif node.op_type in _MOVED and position > 0:
            operands.append([name])  # a shape
        else:
            return None
    result = list(quantize.input[1:])
    if node.op_type in _MOVED:
        if operands[0][1:] != result:
            return None
        inputs = [operands[0][0], *(item for rest in operands[1:] for item in rest)]
        return _like(node, node.op_type, inputs, quantize)
    biases = [operand[0] for operand in operands[2:]]
    match node.op_type:
        case "Conv":
            inputs = [*operands[0], *operands[1], *result, *biases]
            return _like(node, "QLinearConv", inputs, quantize)
        case "MatMul":
            inputs = [*operands[0], *operands[1], *result]
            return _like(node, "QLinearMatMul", inputs, quantize)
        case "Gemm":
            inputs = [*operands[0], *operands[1], *(biases or [""]), *result]
        case "Concat":
            inputs = [*result, *(item for operand in operands for item in operand)]
        case _:
            inputs = [*(item for operand in operands for item in operand), *result]
    ours = _OURS.get(node.op_type)
    return None if ours is None else _like(node, ours, inputs, quantize, "com.microsoft")


def _like(
    node: onnx.NodeProto,
    operator: str,
    inputs: Sequence[str],
    quantize: onnx.NodeProto,
    domain: str = "",
) -> onnx.NodeProto:
    """The node as another operator, with its attributes."""
    result = helper.make_node(
        operator, list(inputs), list(quantize.output), f"{node.name}_quant", domain=domain
    )
    result.attribute.extend(item for item in node.attribute if item.name != "beta")
    return result


def _needed(nodes: Sequence[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """The nodes that outputs depend on, in their order."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]
