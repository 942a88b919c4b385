"""Classifiers: convolutional networks of images, and a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.frontend.zoo.network import (
    GELU_GAIN,
    SILU_GAIN,
    Layer,
    NetworkBuilder,
    Size,
    dense,
    gelu,
    silu,
    whole_layer_norm,
)
from tunefarm.compiler.types.frozen import frozen

_RESIDUAL_GAIN = 0.5  # scale of a branch, so that sums over many blocks stay of order 1


def resnet18(net: NetworkBuilder, size: Size) -> None:
    """ResNet of 18 layers, as large as `size` says."""
    _resnet(net, size, (2, 2, 2, 2), bottleneck=False)


def resnet34(net: NetworkBuilder, size: Size) -> None:
    """ResNet of 34 layers, as large as `size` says."""
    _resnet(net, size, (3, 4, 6, 3), bottleneck=False)


def resnet50(net: NetworkBuilder, size: Size) -> None:
    """ResNet of 50 layers, as large as `size` says."""
    _resnet(net, size, (3, 4, 6, 3), bottleneck=True)


def _resnet(
    net: NetworkBuilder, size: Size, blocks: tuple[int, int, int, int], *, bottleneck: bool
) -> None:
    """He et al., Deep Residual Learning for Image Recognition (arXiv:1512.03385).

    Bottleneck blocks have their stride in the 3x3 convolution, as published later ("v1.5").
    """
    layer = net.image(size, 224)
    layer = net.conv("conv1", layer, size.channels(64), 7, stride=2, padding=3, gain=1.0)
    layer = net.relu(net.batch_norm("bn1", layer))
    layer = net.max_pool(layer, 3, 2, padding=1)
    block = _bottleneck if bottleneck else _basic
    for stage, (count, channels) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), 1):
        for position in range(count):
            stride = 2 if stage > 1 and position == 0 else 1
            layer = block(net, f"layer{stage}.{position}", layer, size.channels(channels), stride)
    net.logits("fc", net.global_average_pool(layer), size)


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


@frozen
class Stage:
    """Inverted residual blocks of equal width; the first of them has the stride."""

    expansion: int
    channels: int
    repeats: int
    stride: int
    kernel: int = 3
    dilation: int = 1


# Table 2 of the paper.
_MOBILENET_STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)


def mobilenet_v2(net: NetworkBuilder, size: Size) -> None:
    """MobileNetV2: Sandler et al., Inverted Residuals and Linear Bottlenecks (arXiv:1801.04381)."""
    layer = stem(net, net.image(size, 224), size)
    layer = inverted_residuals(net, layer, size, _MOBILENET_STAGES)[-1]
    layer = net.conv("head.conv", layer, size.channels(1280), 1, gain=1.0)
    layer = _relu6(net, net.batch_norm("head.bn", layer))
    net.logits("classifier", net.global_average_pool(layer), size)


def stem(net: NetworkBuilder, data: Layer, size: Size) -> Layer:
    """The first convolution, which halves the image."""
    net.scalar("zero", 0.0)
    net.scalar("six", 6.0)
    layer = net.conv("stem.conv", data, size.channels(32), 3, stride=2, padding=1, gain=1.0)
    return _relu6(net, net.batch_norm("stem.bn", layer))


def inverted_residuals(
    net: NetworkBuilder, layer: Layer, size: Size, stages: Sequence[Stage], *, gated: bool = False
) -> list[Layer]:
    """The output of each stage; `gated` ones are EfficientNet's."""
    outputs = []
    for number, stage in enumerate(stages):
        for position in range(stage.repeats):
            name, channels = f"block{number}.{position}", size.channels(stage.channels)
            one = stage if position == 0 else replace(stage, stride=1)
            layer = _inverted_residual(net, name, layer, channels, one, gated)
        outputs.append(layer)
    return outputs


def _inverted_residual(
    net: NetworkBuilder, name: str, data: Layer, channels: int, stage: Stage, gated: bool
) -> Layer:
    """Expand (1x1), filter each channel, weigh the channels if `gated`, project (1x1, linear)."""
    hidden, layer, activation = data.channels * stage.expansion, data, silu if gated else _relu6
    if stage.expansion != 1:
        layer = net.conv(f"{name}.expand", layer, hidden, 1, gain=1.0)
        layer = activation(net, net.batch_norm(f"{name}.expand_bn", layer))
    layer = net.conv(
        f"{name}.depthwise",
        layer,
        hidden,
        stage.kernel,
        stride=stage.stride,
        padding=stage.dilation * (stage.kernel // 2),
        dilation=stage.dilation,
        groups=hidden,
        gain=SILU_GAIN if gated else 2.0,
    )
    layer = activation(net, net.batch_norm(f"{name}.depthwise_bn", layer))
    if gated:
        layer = _weigh_channels(net, f"{name}.se", layer, max(1, data.channels // 4))
    layer = net.conv(f"{name}.project", layer, channels, 1, gain=_GATED_GAIN if gated else 2.0)
    if stage.stride != 1 or data.channels != channels:
        return net.batch_norm(f"{name}.project_bn", layer)
    added = net.batch_norm(f"{name}.project_bn", layer, _RESIDUAL_GAIN)
    return net.add(added, data) if gated else net.add(data, added)


def _relu6(net: NetworkBuilder, data: Layer) -> Layer:
    """After `stem`, which adds the bounds."""
    return Layer(net.node("Clip", [data.name, "zero", "six"]), data.channels)


# Table 1 of the paper.
_EFFICIENTNET_STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 40, 2, 2, kernel=5),
    Stage(6, 80, 3, 2),
    Stage(6, 112, 3, 1, kernel=5),
    Stage(6, 192, 4, 2, kernel=5),
    Stage(6, 320, 1, 1),
)
_GATED_GAIN = 2.5 * SILU_GAIN  # of a layer after squeeze and excitation, whose gates halve


def efficientnet_b0(net: NetworkBuilder, size: Size) -> None:
    """EfficientNet-B0: Tan and Le, EfficientNet (arXiv:1905.11946)."""
    layer = net.image(size, 224)
    layer = net.conv("stem", layer, size.channels(32), 3, stride=2, padding=1, gain=1.0)
    layer = silu(net, net.batch_norm("stem_bn", layer))
    layer = inverted_residuals(net, layer, size, _EFFICIENTNET_STAGES, gated=True)[-1]
    layer = net.conv("head", layer, size.channels(1280), 1, gain=1.0)
    layer = silu(net, net.batch_norm("head_bn", layer))
    net.logits("classifier", net.global_average_pool(layer), size, SILU_GAIN)


def _weigh_channels(net: NetworkBuilder, name: str, data: Layer, squeezed: int) -> Layer:
    """Squeeze and excitation: Hu et al. (arXiv:1709.01507)."""
    pooled = Layer(net.node("GlobalAveragePool", [data.name], f"{name}.pool"), data.channels)
    narrow = silu(net, net.conv(f"{name}.reduce", pooled, squeezed, 1, bias=True))
    wide = net.conv(f"{name}.expand", narrow, data.channels, 1, gain=SILU_GAIN, bias=True)
    gate = net.node("Sigmoid", [wide.name], f"{name}.gate")
    return Layer(net.node("Mul", [gate, data.name], f"{name}.scale"), data.channels)


_CHANNELS, _DEPTHS = (64, 128, 256, 512), (2, 2, 6, 2)
_EPSILON = 1e-6


def convnext_pico(net: NetworkBuilder, size: Size) -> None:
    """A small ConvNeXt: Liu et al., A ConvNet for the 2020s (arXiv:2201.03545), at the width of
    timm's "pico", with norms and perceptrons on channels last between transposes as torchvision has
    them.
    """
    layer = net.image(size, 224)
    for stage, (published, depth) in enumerate(zip(_CHANNELS, _DEPTHS, strict=True)):
        channels, name = size.channels(published), f"stage{stage}"
        if stage == 0:
            layer = net.conv("stem", layer, channels, 4, stride=4, gain=1.0, bias=True)
            layer = _norm_channels(net, "stem.norm", layer)
        else:
            layer = _norm_channels(net, f"{name}.norm", layer)
            layer = net.conv(f"{name}.down", layer, channels, 2, stride=2, gain=1.0, bias=True)
        for position in range(depth):
            layer = _convnext_block(net, f"{name}.{position}", layer)
    pooled = Layer(net.node("GlobalAveragePool", [layer.name], "pool"), layer.channels)
    pooled = _norm_channels(net, "head.norm", pooled)
    flat = Layer(net.node("Flatten", [pooled.name], "head.flat", axis=1), pooled.channels)
    net.logits("head", flat, size)


def _convnext_block(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    """Depthwise 7x7, then on channels last a norm and a perceptron; scaled and added."""
    channels = data.channels
    layer = net.conv(
        f"{name}.dwconv", data, channels, 7, padding=3, groups=channels, gain=1.0, bias=True
    )
    last = net.node("Transpose", [layer.name], f"{name}.last", perm=[0, 2, 3, 1])
    layer = whole_layer_norm(net, f"{name}.norm", Layer(last, channels), _EPSILON)
    layer = gelu(net, f"{name}.gelu", dense(net, f"{name}.pwconv1", layer, 4 * channels))
    layer = dense(net, f"{name}.pwconv2", layer, channels, gain=GELU_GAIN)
    first = net.node("Transpose", [layer.name], f"{name}.first", perm=[0, 3, 1, 2])
    scale = net.uniform(f"{name}.layer_scale", (channels, 1, 1), 0.3, 0.6)
    scaled = net.node("Mul", [first, scale], f"{name}.scaled")
    return net.add(Layer(scaled, channels), data)


def _norm_channels(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    """Layer normalisation over channels, which lie first."""
    last = net.node("Transpose", [data.name], f"{name}.last", perm=[0, 2, 3, 1])
    normal = whole_layer_norm(net, name, Layer(last, data.channels), _EPSILON)
    first = net.node("Transpose", [normal.name], f"{name}.first", perm=[0, 3, 1, 2])
    return Layer(first, data.channels)


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
    """SqueezeNet 1.1: Iandola et al., SqueezeNet (arXiv:1602.07360), in the revised, cheaper
    form.
    """
    classes = size.classes or 1000
    layer = net.image(size, 224)
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


_VGG_CHANNELS: tuple[tuple[int, ...], ...] = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(net: NetworkBuilder, size: Size) -> None:
    """VGG-11 (configuration A): Simonyan and Zisserman, Very Deep Convolutional Networks
    (arXiv:1409.1556).

    The image's extent must be a multiple of 32.
    """
    layer, pixels = net.image(size, 224), ((size.image or 224) // 32) ** 2
    gain = 1.0
    for stage, stage_channels in enumerate(_VGG_CHANNELS, 1):
        for position, channels in enumerate(stage_channels, 1):
            name = f"conv{stage}_{position}"
            layer = net.conv(
                name, layer, size.channels(channels), 3, padding=1, gain=gain, bias=True
            )
            layer = net.relu(layer)
            gain = 2.0
        layer = net.max_pool(layer, 2, 2)
    layer = Layer(net.node("Flatten", [layer.name], axis=1), layer.channels * pixels)
    hidden = size.channels(4096)
    layer = net.relu(net.linear("fc6", layer, hidden, gain=1.0))
    layer = net.relu(net.linear("fc7", layer, hidden, gain=2.0))
    net.logits("fc8", layer, size)


def mlp(net: NetworkBuilder, size: Size) -> None:
    """A small multilayer perceptron, as for 28x28 grey images."""
    layer = Layer(net.input("input", (size.batch, 784)), 784)
    for position, features in enumerate((512, 256), 1):
        gain = 1.0 if position == 1 else 2.0
        layer = net.relu(net.linear(f"fc{position}", layer, size.channels(features), gain))
    net.logits("fc3", layer, replace(size, classes=size.classes or 10))
