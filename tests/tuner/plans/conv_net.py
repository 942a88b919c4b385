"""Networks of convolutions, whose channels fill no block of 16 unless they are asked to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from tests.compiler.frontend.onnx_models import model, node, tensor


def conv_net(channels: Sequence[int] = (24, 24, 24), size: int = 12) -> onnx.ModelProto:
    """A convolution and ReLU for each number of channels on `size` x `size` pixels, then a pool."""
    rng = np.random.default_rng(0)
    nodes, constants, name, before = [], {}, "x", 3
    for number, count in enumerate(channels):
        weights = 0.2 * rng.standard_normal((count, before, 3, 3)).astype(np.float32)
        constants[f"w{number}"] = weights
        made, out = f"c{number}", f"r{number}"
        nodes += [
            node("Conv", f"{name} w{number}", made, pads=[1, 1, 1, 1], name=f"conv{number}"),
            node("Relu", made, out, name=f"relu{number}"),
        ]
        name, before = out, count
    nodes.append(node("GlobalAveragePool", name, name="pool"))
    return model(nodes, [tensor("x", [1, 3, size, size])], constants=constants)
