"""VGG-11 (configuration A): Simonyan and Zisserman, Very Deep Convolutional Networks
(arXiv:1409.1556)."""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size

_CHANNELS: tuple[tuple[int, ...], ...] = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(net: NetworkBuilder, size: Size) -> None:
    """The image's extent must be a multiple of 32."""
    image, classes = size.image or 224, size.classes or 1000
    layer = Layer(net.input("input", (size.batch, 3, image, image)), 3)
    gain = 1.0
    for stage, stage_channels in enumerate(_CHANNELS, 1):
        for position, channels in enumerate(stage_channels, 1):
            name = f"conv{stage}_{position}"
            layer = net.conv(
                name, layer, size.channels(channels), 3, padding=1, gain=gain, bias=True
            )
            layer = net.relu(layer)
            gain = 2.0
        layer = net.max_pool(layer, 2, 2)
    pixels = (image // 32) ** 2
    layer = Layer(net.node("Flatten", [layer.name], axis=1), layer.channels * pixels)
    hidden = size.channels(4096)
    layer = net.relu(net.linear("fc6", layer, hidden, gain=1.0))
    layer = net.relu(net.linear("fc7", layer, hidden, gain=2.0))
    layer = net.linear("fc8", layer, classes)
    net.output(layer.name, "logits", (size.batch, classes))
