"""CRNN, a reader of lines of text: Shi et al. (arXiv:1507.05717). The outputs are the logarithms
of the characters' probabilities at each step from left to right."""

from __future__ import annotations

import math

import numpy as np

from tunefarm.compiler.frontend.zoo.network import Extent, Layer, NetworkBuilder, Size

_HEIGHT, _WIDTH = 32, 128  # of the image
_NARROW: tuple[Extent, Extent, Extent] = ((2, 2), (2, 1), (0, 1))
"""A pool that halves the rows and keeps the columns: kernel, stride, padding."""

# channels, batch norm, pool after it (table 1 of the paper)
_FEATURES: tuple[tuple[int, bool, tuple[Extent, Extent, Extent] | None], ...] = (
    (64, False, (2, 2, 0)),
    (128, False, (2, 2, 0)),
    (256, True, None),
    (256, False, _NARROW),
    (512, True, None),
    (512, False, _NARROW),
)


def crnn(net: NetworkBuilder, size: Size) -> None:
    """`image` is the width in pixels, a multiple of 4."""
    width, classes = size.image or _WIDTH, size.classes or 37
    layer = Layer(net.input("input", (size.batch, 1, _HEIGHT, width)), 1)
    gain = 1.0
    for number, (published, has_norm, pool) in enumerate(_FEATURES):
        channels = size.channels(published)
        layer = net.conv(f"conv{number}", layer, channels, 3, padding=1, gain=gain, bias=True)
        if has_norm:
            layer = net.batch_norm(f"bn{number}", layer)
        layer, gain = net.relu(layer), 2.0
        if pool is not None:
            layer = net.max_pool(layer, *pool)
    layer = net.conv("conv6", layer, size.channels(512), 2, bias=True)
    layer = net.relu(net.batch_norm("bn6", layer))
    steps = width // 4 + 1
    rows = net.node("Squeeze", [layer.name, net.integers("rows", 2)], "squeezed")
    layer = Layer(net.node("Transpose", [rows], "steps", perm=[2, 0, 1]), layer.channels)
    hidden = size.channels(256)
    layer = _reads_both_ways(net, "rnn0", layer, hidden, hidden, (steps, size.batch))
    layer = _reads_both_ways(net, "rnn1", layer, hidden, classes, (steps, size.batch))
    read = net.node("LogSoftmax", [layer.name], "log_softmax", axis=2)
    net.output(read, "log_probabilities", (steps, size.batch, classes))


def _reads_both_ways(
    net: NetworkBuilder, name: str, data: Layer, hidden: int, features: int, shape: tuple[int, int]
) -> Layer:
    """A bidirectional LSTM and a fully connected layer, on [steps, batch, features]."""
    steps, batch = shape
    bound = 1.0 / math.sqrt(hidden)
    inputs = [
        data.name,
        net.uniform(f"{name}.weight", (2, 4 * hidden, data.channels), -bound, bound),
        net.uniform(f"{name}.recurrence", (2, 4 * hidden, hidden), -bound, bound),
        net.uniform(f"{name}.bias", (2, 8 * hidden), -bound, bound),
        "",
        net.constant(f"{name}.hidden", np.zeros((2, batch, hidden), np.float32)),
        net.constant(f"{name}.cell", np.zeros((2, batch, hidden), np.float32)),
    ]
    both = net.node("LSTM", inputs, name, hidden_size=hidden, direction="bidirectional")
    turned = net.node("Transpose", [both], f"{name}.turned", perm=[0, 2, 1, 3])
    joined = net.reshape(turned, (steps, batch, 2 * hidden), f"{name}.joined")
    flat = net.reshape(joined, (steps * batch, 2 * hidden), f"{name}.flat")
    layer = net.linear(f"{name}.embedding", Layer(flat, 2 * hidden), features, 8.0)
    return Layer(net.reshape(layer.name, (steps, batch, features), f"{name}.out"), features)
