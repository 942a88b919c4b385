"""A small multilayer perceptron, as for 28x28 grey images."""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size


def mlp(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    classes = size.classes or 10
    layer = Layer(net.input("input", (size.batch, 784)), 784)
    for position, features in enumerate((512, 256), 1):
        gain = 1.0 if position == 1 else 2.0
        layer = net.relu(net.linear(f"fc{position}", layer, size.channels(features), gain))
    layer = net.linear("fc3", layer, classes)
    net.output(layer.name, "logits", (size.batch, classes))
