"""U-Net: Ronneberger et al. (arXiv:1505.04597), half as wide, with padding and batch norm."""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size

_CHANNELS = (32, 64, 128, 256, 512)


def unet(net: NetworkBuilder, size: Size) -> None:
    """The image's extent must be a multiple of 16."""
    image, classes = size.image or 128, size.classes or 4
    widths = [size.channels(channels) for channels in _CHANNELS]
    layer = Layer(net.input("input", (size.batch, 3, image, image)), 3)
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
