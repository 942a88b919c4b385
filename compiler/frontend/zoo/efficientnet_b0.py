"""EfficientNet-B0: Tan and Le, EfficientNet (arXiv:1905.11946)."""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size
from tunefarm.compiler.frontend.zoo.spelled_out import SILU_GAIN, silu

# expansion, kernel, stride of the first, output channels, repeats (table 1 of the paper)
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
_GATED_GAIN = 2.5 * SILU_GAIN  # of a layer after squeeze and excitation, whose gates halve
_RESIDUAL_GAIN = 0.5


def efficientnet_b0(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    image, classes = size.image or 224, size.classes or 1000
    layer = Layer(net.input("input", (size.batch, 3, image, image)), 3)
    layer = net.conv("stem", layer, size.channels(32), 3, stride=2, padding=1, gain=1.0)
    layer = silu(net, net.batch_norm("stem_bn", layer))
    for stage, (expansion, kernel, first_stride, channels, count) in enumerate(_STAGES):
        for position in range(count):
            stride = first_stride if position == 0 else 1
            name = f"block{stage}.{position}"
            layer = _block(net, name, layer, size.channels(channels), expansion, kernel, stride)
    layer = net.conv("head", layer, size.channels(1280), 1, gain=1.0)
    layer = silu(net, net.batch_norm("head_bn", layer))
    layer = net.linear("classifier", net.global_average_pool(layer), classes, SILU_GAIN)
    net.output(layer.name, "logits", (size.batch, classes))


def _block(
    net: NetworkBuilder,
    name: str,
    data: Layer,
    channels: int,
    expansion: int,
    kernel: int,
    stride: int,
) -> Layer:
    """Expand (1x1), filter each channel, weigh the channels, project (1x1, linear)."""
    hidden = data.channels * expansion
    layer = data
    if expansion != 1:
        layer = net.conv(f"{name}.expand", layer, hidden, 1, gain=1.0)
        layer = silu(net, net.batch_norm(f"{name}.expand_bn", layer))
    layer = net.conv(
        f"{name}.depthwise",
        layer,
        hidden,
        kernel,
        stride=stride,
        padding=kernel // 2,
        groups=hidden,
        gain=SILU_GAIN,
    )
    layer = silu(net, net.batch_norm(f"{name}.depthwise_bn", layer))
    layer = _weigh_channels(net, f"{name}.se", layer, max(1, data.channels // 4))
    layer = net.conv(f"{name}.project", layer, channels, 1, gain=_GATED_GAIN)
    if stride != 1 or data.channels != channels:
        return net.batch_norm(f"{name}.project_bn", layer)
    return net.add(net.batch_norm(f"{name}.project_bn", layer, _RESIDUAL_GAIN), data)


def _weigh_channels(net: NetworkBuilder, name: str, data: Layer, squeezed: int) -> Layer:
    """Squeeze and excitation: Hu et al. (arXiv:1709.01507)."""
    pooled = Layer(net.node("GlobalAveragePool", [data.name], f"{name}.pool"), data.channels)
    narrow = silu(net, net.conv(f"{name}.reduce", pooled, squeezed, 1, bias=True))
    wide = net.conv(f"{name}.expand", narrow, data.channels, 1, gain=SILU_GAIN, bias=True)
    gate = net.node("Sigmoid", [wide.name], f"{name}.gate")
    return Layer(net.node("Mul", [gate, data.name], f"{name}.scale"), data.channels)
