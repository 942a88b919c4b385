"""Networks with a result for each place of an image: segmentation, and a reader of lines of
text.
"""

from __future__ import annotations

import math

import numpy as np

from tunefarm.compiler.frontend.zoo.classifiers import Stage, inverted_residuals, stem
from tunefarm.compiler.frontend.zoo.network import Extent, Layer, NetworkBuilder, Size, scaled

_STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 1, dilation=2),
    Stage(6, 320, 1, 1, dilation=2),
)
_SHALLOW_STAGE = 1  # whose output, of a quarter of the image, the decoder reads too
_RATES = (6, 12, 18)


def deeplab_v3plus(net: NetworkBuilder, size: Size) -> None:
    """DeepLabv3+: Chen et al., Encoder-Decoder with Atrous Separable Convolution
    (arXiv:1802.02611), on a MobileNetV2 of output stride 16; the output are the classes'
    probabilities at each pixel.

    The image's extent must be a multiple of 16.
    """
    image, classes = size.image or 256, size.classes or 21
    outputs = inverted_residuals(net, stem(net, net.image(size, 256), size), size, _STAGES)
    layer, shallow = outputs[-1], outputs[_SHALLOW_STAGE]
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
    corners = "align_corners"
    return scaled(net, name, data, factor, mode="linear", coordinate_transformation_mode=corners)


_CHANNELS = (32, 64, 128, 256, 512)


def unet(net: NetworkBuilder, size: Size) -> None:
    """U-Net: Ronneberger et al. (arXiv:1505.04597), half as wide, with padding and batch norm.

    The image's extent must be a multiple of 16.
    """
    image, classes = size.image or 128, size.classes or 4
    widths = [size.channels(channels) for channels in _CHANNELS]
    layer = net.image(size, 128)
    skipped: list[Layer] = []
    for level, channels in enumerate(widths):
        if level:
            skipped.append(layer)
            layer = net.max_pool(layer, 2, 2)
        layer = _twice(net, f"down{level}", layer, channels)
    for level, skip in reversed(list(enumerate(skipped))):
        layer = net.conv_transpose(f"up{level}.upsample", layer, widths[level], 2)
        layer = _twice(net, f"up{level}", net.concat(skip, layer), widths[level])
    layer = net.conv("head", layer, classes, 1, bias=True)
    net.output(layer.name, "logits", (size.batch, classes, image, image))


def _twice(net: NetworkBuilder, name: str, data: Layer, channels: int) -> Layer:
    """Two 3x3 convolutions, each with batch norm and ReLU."""
    for number in (1, 2):
        gain = 1.0 if data.channels == 3 else 2.0
        data = net.conv(f"{name}.conv{number}", data, channels, 3, padding=1, gain=gain)
        data = net.relu(net.batch_norm(f"{name}.bn{number}", data))
    return data


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
    """CRNN, a reader of lines of text: Shi et al. (arXiv:1507.05717). The outputs are the
    logarithms of the characters' probabilities at each step from left to right.

    `image` is the width in pixels, a multiple of 4.
    """
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
