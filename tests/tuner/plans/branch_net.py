"""A network whose two products read the same data and may run as one."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

WIDTH = 32
"""Columns of each product."""


def branch_net() -> onnx.ModelProto:
    """Two products `a` and `b` of a row, multiplied, and a softmax."""
    rng = np.random.default_rng(0)
    weights = [0.2 * rng.standard_normal((64, WIDTH)).astype(np.float32) for _ in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"], name="first"),
        helper.make_node("MatMul", ["x", "w"], ["b"], name="other"),
        helper.make_node("Mul", ["a", "b"], ["m"], name="gate"),
        helper.make_node("Softmax", ["m"], ["y"], name="softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "branches",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, WIDTH])],
        [numpy_helper.from_array(each, name) for each, name in zip(weights, "vw", strict=True)],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
