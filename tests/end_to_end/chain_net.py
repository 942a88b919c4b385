"""A network whose first convolution should be computed in its reader's kernel, by estimates."""

from __future__ import annotations

import numpy as np
import onnx

from tests.compiler.frontend.onnx_models import model, tensor

SHAPE = (1, 16, 56, 56)


def chain_net() -> onnx.ModelProto:
    """A convolution `a` to many channels, a depthwise one of them, and one to few."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)

    constants = {
        "expand": weights(96, 16, 1, 1),
        "filter": weights(96, 1, 3, 3),
        "project": weights(32, 96, 1, 1),
    }
    nodes = (
        "a = Conv x expand; b = Relu a; c = Conv b filter group=96 strides=[2,2] pads=[1,1,1,1]; "
        "d = Relu c; Conv d project"
    )
    return model(nodes, [tensor("x", SHAPE)], constants=constants)
