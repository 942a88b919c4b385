"""SqueezeNet 1.1: Iandola et al., SqueezeNet (arXiv:1602.07360), in the revised, cheaper form."""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size

# squeeze, expand (each of 1x1 and 3x3); None is a pool
_FEATURES: tuple[tuple[int, int] | None, ...] = (
    None,
    (16, 64),
    (16, 64),
    None,
    (32, 128),
    (32, 128),
    None,
    (48, 192),
    (48, 192),
    (64, 256),
    (64, 256),
)


def squeezenet1_1(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    image, classes = size.image or 224, size.classes or 1000
    layer = Layer(net.input("input", (size.batch, 3, image, image)), 3)
    layer = net.relu(net.conv("conv1", layer, size.channels(64), 3, stride=2, gain=1.0, bias=True))
    number = 2
    for feature in _FEATURES:
        if feature is None:
            layer = net.max_pool(layer, 3, 2, ceil_mode=True)
            continue
        squeeze, expand = (size.channels(channels) for channels in feature)
        layer = _fire(net, f"fire{number}", layer, squeeze, expand)
        number += 1
    layer = net.relu(net.conv("conv10", layer, classes, 1, bias=True))
    layer = net.global_average_pool(layer)
    net.output(layer.name, "logits", (size.batch, classes))


def _fire(net: NetworkBuilder, name: str, data: Layer, squeeze: int, expand: int) -> Layer:
    narrow = net.relu(net.conv(f"{name}.squeeze", data, squeeze, 1, bias=True))
    small = net.relu(net.conv(f"{name}.expand1x1", narrow, expand, 1, bias=True))
    large = net.relu(net.conv(f"{name}.expand3x3", narrow, expand, 3, padding=1, bias=True))
    return Layer(net.node("Concat", [small.name, large.name], axis=1), 2 * expand)
