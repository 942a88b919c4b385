"""A small convolutional network, and variants of it that the command line must refuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.compiler.frontend.onnx_models import node


def tiny_model(batch: int | str = 1) -> onnx.ModelProto:
    """Convolution, ReLU, pooling, a dense layer and softmax on 12 x 12 pixels."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1], name="conv1"),
        node("Relu", "c", "r", name="relu1"),
        node("GlobalAveragePool", "r", "p", name="pool1"),
        node("Flatten", "p", "f", name="flatten1"),
        node("Gemm", "f v d", "g", transB=1, name="dense1"),
        node("Softmax", "g", name="softmax1"),
    ]
    return _model(nodes, batch)


def unsupported_model() -> onnx.ModelProto:
    """Two nodes of operators that no converter covers."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1], name="conv1"),
        node("MysteryNorm", "c", "r", name="mystery1", domain="made.up"),
        node("OtherMystery", "r", "p", name="mystery2", domain="made.up"),
        node("GlobalAveragePool", "p", "q", name="pool1"),
        node("Flatten", "q", "f", name="flatten1"),
        node("Gemm", "f v d", transB=1, name="dense1"),
    ]
    return _model(nodes, 1)


def external_model(path: Path, location: str) -> None:
    """Write the tiny model with its convolution's weights in another file, which is not written."""
    model = tiny_model()
    weights = model.graph.initializer[0]
    count = len(weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(count))):
        weights.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


def _model(nodes: Sequence[onnx.NodeProto], batch: int | str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> onnx.TensorProto:
        values = 0.3 * rng.standard_normal(shape).astype(np.float32)
        return numpy_helper.from_array(values, name)

    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 3, 12, 12])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [batch, 10])],
        [tensor("w", 16, 3, 3, 3), tensor("b", 16), tensor("v", 10, 16), tensor("d", 10)],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("made.up", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
