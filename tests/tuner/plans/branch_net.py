"""A network whose two products read the same data and may run as one."""

from __future__ import annotations

import numpy as np
import onnx

from tests.compiler.frontend.onnx_models import model, node, tensor

WIDTH = 32
"""Columns of each product."""


def branch_net() -> onnx.ModelProto:
    """Two products `a` and `b` of a row, multiplied, and a softmax."""
    rng = np.random.default_rng(0)
    weights = [0.2 * rng.standard_normal((64, WIDTH)).astype(np.float32) for _ in range(2)]
    nodes = [
        node("MatMul", "x v", "a", name="first"),
        node("MatMul", "x w", "b", name="other"),
        node("Mul", "a b", "m", name="gate"),
        node("Softmax", "m", name="softmax"),
    ]
    constants = dict(zip("vw", weights, strict=True))
    return model(nodes, [tensor("x", [1, 64])], constants=constants)
