"""DeepLabv3+: Chen et al., Encoder-Decoder with Atrous Separable Convolution (arXiv:1802.02611),
on a MobileNetV2 of output stride 16; the output are the classes' probabilities at each pixel."""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.mobilenet_v2 import inverted_residual, stem
from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size

# expansion, output channels, repeats, stride of the first, dilation
_STAGES = (
    (1, 16, 1, 1, 1),
    (6, 24, 2, 2, 1),
    (6, 32, 3, 2, 1),
    (6, 64, 4, 2, 1),
    (6, 96, 3, 1, 1),
    (6, 160, 3, 1, 2),
    (6, 320, 1, 1, 2),
)
_SHALLOW_STAGE = 1  # whose output, of a quarter of the image, the decoder reads too
_RATES = (6, 12, 18)


def deeplab_v3plus(net: NetworkBuilder, size: Size) -> None:
    """The image's extent must be a multiple of 16."""
    image, classes = size.image or 256, size.classes or 21
    layer = stem(net, Layer(net.input("input", (size.batch, 3, image, image)), 3), size)
    shallow = layer
    for stage, (expansion, channels, count, first_stride, dilation) in enumerate(_STAGES):
        for position in range(count):
            stride = first_stride if position == 0 else 1
            name, wide = f"block{stage}.{position}", size.channels(channels)
            layer = inverted_residual(net, name, layer, wide, expansion, stride, dilation)
        if stage == _SHALLOW_STAGE:
            shallow = layer
    layer = _pyramid(net, layer, size.channels(256), size.batch, image // 16)
    layer = _grow(net, "decoder.grow", layer, 4)
    shallow = _narrow(net, "decoder.shallow", shallow, size.channels(48))
    layer = _separable(net, "decoder.fuse", net.concat(layer, shallow), size.channels(256), 1)
    layer = net.conv("head", layer, classes, 1, bias=True)
    layer = _resize(net, "resized", layer, size.batch, image)
    probabilities = net.node("Softmax", [layer.name], "softmax", axis=1)
    net.output(probabilities, "probabilities", (size.batch, classes, image, image))


def _pyramid(net: NetworkBuilder, data: Layer, channels: int, batch: int, extent: int) -> Layer:
    """Atrous spatial pyramid pooling: the same map at several rates, and its mean."""
    branches = [_narrow(net, "aspp.narrow", data, channels)]
    branches += [_separable(net, f"aspp.rate{rate}", data, channels, rate) for rate in _RATES]
    pooled = Layer(net.node("GlobalAveragePool", [data.name], "aspp.pool"), data.channels)
    pooled = _narrow(net, "aspp.pooled", pooled, channels)
    branches.append(_resize(net, "aspp.spread", pooled, batch, extent))
    return _narrow(net, "aspp.project", net.concat(*branches), channels)


def _narrow(net: NetworkBuilder, name: str, data: Layer, channels: int) -> Layer:
    layer = net.conv(f"{name}.conv", data, channels, 1)
    return net.relu(net.batch_norm(f"{name}.bn", layer))


def _separable(net: NetworkBuilder, name: str, data: Layer, channels: int, rate: int) -> Layer:
    """A dilated depthwise convolution and a 1x1 one."""
    layer = net.conv(
        f"{name}.depthwise",
        data,
        data.channels,
        3,
        padding=rate,
        dilation=rate,
        groups=data.channels,
        gain=1.0,
    )
    return _narrow(net, f"{name}.pointwise", layer, channels)


def _resize(net: NetworkBuilder, name: str, data: Layer, batch: int, extent: int) -> Layer:
    """Bilinear, to a square of that extent."""
    channels = data.channels
    sizes = net.integers(f"{name}.sizes", batch, channels, extent, extent)
    resized = net.node(
        "Resize",
        [data.name, "", "", sizes],
        name,
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    return Layer(resized, channels)


def _grow(net: NetworkBuilder, name: str, data: Layer, factor: int) -> Layer:
    """Bilinear, by a factor, corners on corners."""
    scales = net.floats(f"{name}.scales", 1.0, 1.0, factor, factor)
    grown = net.node(
        "Resize",
        [data.name, "", scales],
        name,
        mode="linear",
        coordinate_transformation_mode="align_corners",
    )
    return Layer(grown, data.channels)
