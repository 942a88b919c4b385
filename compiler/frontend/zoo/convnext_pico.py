"""A small ConvNeXt: Liu et al., A ConvNet for the 2020s (arXiv:2201.03545), at the width of timm's
"pico", with norms and perceptrons on channels last between transposes as torchvision has them."""

from __future__ import annotations

from tunefarm.compiler.frontend.zoo.network import Layer, NetworkBuilder, Size
from tunefarm.compiler.frontend.zoo.spelled_out import GELU_GAIN, dense, gelu

_CHANNELS, _DEPTHS = (64, 128, 256, 512), (2, 2, 6, 2)
_EPSILON = 1e-6


def convnext_pico(net: NetworkBuilder, size: Size) -> None:
    """Add the network to `net`, as large as `size` says."""
    image, classes = size.image or 224, size.classes or 1000
    layer = Layer(net.input("input", (size.batch, 3, image, image)), 3)
    for stage, (published, depth) in enumerate(zip(_CHANNELS, _DEPTHS, strict=True)):
        channels, name = size.channels(published), f"stage{stage}"
        if stage == 0:
            layer = net.conv("stem", layer, channels, 4, stride=4, gain=1.0, bias=True)
            layer = _norm_channels(net, "stem.norm", layer)
        else:
            layer = _norm_channels(net, f"{name}.norm", layer)
            layer = net.conv(f"{name}.down", layer, channels, 2, stride=2, gain=1.0, bias=True)
        for position in range(depth):
            layer = _block(net, f"{name}.{position}", layer)
    pooled = Layer(net.node("GlobalAveragePool", [layer.name], "pool"), layer.channels)
    pooled = _norm_channels(net, "head.norm", pooled)
    flat = Layer(net.node("Flatten", [pooled.name], "head.flat", axis=1), pooled.channels)
    layer = net.linear("head", flat, classes)
    net.output(layer.name, "logits", (size.batch, classes))


def _block(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    """Depthwise 7x7, then on channels last a norm and a perceptron; scaled and added."""
    channels = data.channels
    layer = net.conv(
        f"{name}.dwconv", data, channels, 7, padding=3, groups=channels, gain=1.0, bias=True
    )
    last = net.node("Transpose", [layer.name], f"{name}.last", perm=[0, 2, 3, 1])
    layer = _layer_norm(net, f"{name}.norm", Layer(last, channels))
    layer = gelu(net, f"{name}.gelu", dense(net, f"{name}.pwconv1", layer, 4 * channels))
    layer = dense(net, f"{name}.pwconv2", layer, channels, gain=GELU_GAIN)
    first = net.node("Transpose", [layer.name], f"{name}.first", perm=[0, 3, 1, 2])
    scale = net.uniform(f"{name}.layer_scale", (channels, 1, 1), 0.3, 0.6)
    scaled = net.node("Mul", [first, scale], f"{name}.scaled")
    return net.add(Layer(scaled, channels), data)


def _norm_channels(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    """Layer normalisation over channels, which lie first."""
    last = net.node("Transpose", [data.name], f"{name}.last", perm=[0, 2, 3, 1])
    normal = _layer_norm(net, name, Layer(last, data.channels))
    first = net.node("Transpose", [normal.name], f"{name}.first", perm=[0, 3, 1, 2])
    return Layer(first, data.channels)


def _layer_norm(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    scale = net.uniform(f"{name}.weight", data.channels, 0.8, 1.2)
    bias = net.uniform(f"{name}.bias", data.channels, -0.1, 0.1)
    inputs = [data.name, scale, bias]
    output = net.node("LayerNormalization", inputs, name, axis=-1, epsilon=_EPSILON)
    return Layer(output, data.channels)
