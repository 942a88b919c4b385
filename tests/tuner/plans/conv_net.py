"""Networks of convolutions, whose channels fill no block of 16 unless they are asked to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper


def conv_net(channels: Sequence[int] = (24, 24, 24), size: int = 12) -> onnx.ModelProto:
    """A convolution and ReLU for each number of channels on `size` x `size` pixels, then a pool."""
    rng = np.random.default_rng(0)
    nodes, constants, name, before = [], [], "x", 3
    for number, count in enumerate(channels):
        weights = 0.2 * rng.standard_normal((count, before, 3, 3)).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{number}"))
        inputs, made, out = [name, f"w{number}"], f"c{number}", f"r{number}"
        nodes += [
            helper.make_node("Conv", inputs, [made], pads=[1, 1, 1, 1], name=f"conv{number}"),
            helper.make_node("Relu", [made], [out], name=f"relu{number}"),
        ]
        name, before = out, count
    nodes.append(helper.make_node("GlobalAveragePool", [name], ["y"], name="pool"))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, before, 1, 1])],
        constants,
    )
    opset = helper.make_opsetid("", 18)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)
