"""A network two of whose convolutions read the same data and should run as one, by estimates."""

from __future__ import annotations

import numpy as np
import onnx

from tests.compiler.frontend.onnx_models import model, node, tensor

SHAPE = (1, 16, 28, 28)


def branch_net() -> onnx.ModelProto:
    """Windows `a` and `b` of 16 and 32 channels, a convolution behind each, and their sum."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)

    constants = {
        "first": weights(32, 16, 1, 1),
        "v": weights(16, 32, 3, 3),
        "w": weights(32, 32, 3, 3),
        "behind_a": weights(16, 16, 1, 1),
        "behind_b": weights(16, 32, 1, 1),
    }
    nodes = [
        node("Conv", "x first", "image"),
        node("Conv", "image v", "a", pads=[1, 1, 1, 1]),
        node("Conv", "image w", "b", pads=[1, 1, 1, 1]),
        node("Conv", "a behind_a", "c"),
        node("Conv", "b behind_b", "d"),
        node("Add", "c d", "y"),
    ]
    return model(nodes, [tensor("x", SHAPE)], constants=constants)
