"""ResNet: He et al., Deep Residual Learning for Image Recognition (arXiv:1512.03385).

Bottleneck blocks have their stride in the 3x3 convolution, as published later ("v1.5").
"""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size

_RESIDUAL_GAIN = 0.5  # scale of a branch, so that sums over many blocks stay of order 1


def resnet18(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    _resnet(net, size, (2, 2, 2, 2), bottleneck=False)


def resnet34(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    _resnet(net, size, (3, 4, 6, 3), bottleneck=False)


def resnet50(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    _resnet(net, size, (3, 4, 6, 3), bottleneck=True)


def _resnet(
    net: NetworkBuilder, size: Size, blocks: tuple[int, int, int, int], *, bottleneck: bool
) -> None:
    image, classes = size.image or 224, size.classes or 1000
    layer = Layer(net.input("input", (size.batch, 3, image, image)), 3)
    layer = net.conv("conv1", layer, size.channels(64), 7, stride=2, padding=3, gain=1.0)
    layer = net.relu(net.batch_norm("bn1", layer))
    layer = net.max_pool(layer, 3, 2, padding=1)
    block = _bottleneck if bottleneck else _basic
    for stage, (count, channels) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), 1):
        for position in range(count):
            stride = 2 if stage > 1 and position == 0 else 1
            layer = block(net, f"layer{stage}.{position}", layer, size.channels(channels), stride)
    layer = net.linear("fc", net.global_average_pool(layer), classes)
    net.output(layer.name, "logits", (size.batch, classes))


def _basic(net: NetworkBuilder, name: str, data: Layer, channels: int, stride: int) -> Layer:
    branch = net.conv(f"{name}.conv1", data, channels, 3, stride=stride, padding=1)
    branch = net.relu(net.batch_norm(f"{name}.bn1", branch))
    branch = net.conv(f"{name}.conv2", branch, channels, 3, padding=1)
    branch = net.batch_norm(f"{name}.bn2", branch, _RESIDUAL_GAIN)
    return net.relu(net.add(branch, _shortcut(net, name, data, channels, stride)))


def _bottleneck(net: NetworkBuilder, name: str, data: Layer, channels: int, stride: int) -> Layer:
    branch = net.conv(f"{name}.conv1", data, channels, 1)
    branch = net.relu(net.batch_norm(f"{name}.bn1", branch))
    branch = net.conv(f"{name}.conv2", branch, channels, 3, stride=stride, padding=1)
    branch = net.relu(net.batch_norm(f"{name}.bn2", branch))
    branch = net.conv(f"{name}.conv3", branch, 4 * channels, 1)
    branch = net.batch_norm(f"{name}.bn3", branch, _RESIDUAL_GAIN)
    return net.relu(net.add(branch, _shortcut(net, name, data, 4 * channels, stride)))


def _shortcut(net: NetworkBuilder, name: str, data: Layer, channels: int, stride: int) -> Layer:
    if stride == 1 and data.channels == channels:
        return data
    projected = net.conv(f"{name}.downsample.0", data, channels, 1, stride=stride, gain=1.0)
    return net.batch_norm(f"{name}.downsample.1", projected)
