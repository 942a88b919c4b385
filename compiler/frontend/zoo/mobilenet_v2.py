"""MobileNetV2: Sandler et al., Inverted Residuals and Linear Bottlenecks (arXiv:1801.04381)."""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size

# expansion, output channels, repeats, stride of the first (table 2 of the paper)
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_RESIDUAL_GAIN = 0.5


def mobilenet_v2(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    image, classes = size.image or 224, size.classes or 1000
    layer = stem(net, Layer(net.input("input", (size.batch, 3, image, image)), 3), size)
    for stage, (expansion, channels, count, first_stride) in enumerate(_STAGES):
        for position in range(count):
            stride = first_stride if position == 0 else 1
            name = f"block{stage}.{position}"
            layer = inverted_residual(net, name, layer, size.channels(channels), expansion, stride)
    layer = net.conv("head.conv", layer, size.channels(1280), 1, gain=1.0)
    layer = relu6(net, net.batch_norm("head.bn", layer))
    layer = net.linear("classifier", net.global_average_pool(layer), classes)
    net.output(layer.name, "logits", (size.batch, classes))


def stem(net: NetworkBuilder, data: Layer, size: Size) -> Layer:
    """The first convolution, which halves the image."""
    net.scalar("zero", 0.0)
    net.scalar("six", 6.0)
    layer = net.conv("stem.conv", data, size.channels(32), 3, stride=2, padding=1, gain=1.0)
    return relu6(net, net.batch_norm("stem.bn", layer))


def inverted_residual(
    net: NetworkBuilder,
    name: str,
    data: Layer,
    channels: int,
    expansion: int,
    stride: int,
    dilation: int = 1,
) -> Layer:
    """Expand (1x1), filter each channel (3x3), project (1x1, linear)."""
    hidden = data.channels * expansion
    layer = data
    if expansion != 1:
        layer = net.conv(f"{name}.expand", layer, hidden, 1, gain=1.0)
        layer = relu6(net, net.batch_norm(f"{name}.expand_bn", layer))
    layer = net.conv(
        f"{name}.depthwise",
        layer,
        hidden,
        3,
        stride=stride,
        padding=dilation,
        dilation=dilation,
        groups=hidden,
    )
    layer = relu6(net, net.batch_norm(f"{name}.depthwise_bn", layer))
    layer = net.conv(f"{name}.project", layer, channels, 1)
    if stride != 1 or data.channels != channels:
        return net.batch_norm(f"{name}.project_bn", layer)
    return net.add(data, net.batch_norm(f"{name}.project_bn", layer, _RESIDUAL_GAIN))


def relu6(net: NetworkBuilder, data: Layer) -> Layer:
    """After `stem`, which adds the bounds."""
    return Layer(net.node("Clip", [data.name, "zero", "six"]), data.channels)
