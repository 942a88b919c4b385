"""YOLOv3-tiny: Redmon and Farhadi, YOLOv3 (arXiv:1804.02767), with classes by softmax as in
YOLO9000 (arXiv:1612.08242). The output are boxes (centre, width, height in cells of the coarse
map), whether there is something, and the classes' probabilities, for each anchor at each place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.frontend.zoo.network import Floats, Layer, NetworkBuilder, Size

_CHANNELS = (16, 32, 64, 128, 256, 512)
_COARSE = 32  # pixels of a cell
_ANCHORS = {32: ((81, 82), (135, 169), (344, 319)), 16: ((10, 14), (23, 27), (37, 58))}  # pixels
_SLOPE = 0.1
_LEAKY_GAIN = 1.98
_HEAD_GAIN = 0.1  # so that exponentials stay of order 1


def yolov3_tiny(net: NetworkBuilder, size: Size) -> None:
    """The image's extent must be a multiple of 32."""
    image, classes = size.image or 256, size.classes or 80
    layer = Layer(net.input("input", (size.batch, 3, image, image)), 3)
    shallow = layer
    for number, published in enumerate(_CHANNELS):
        layer = _conv(net, f"conv{number}", layer, size.channels(published), 3)
        if published == 256:
            shallow = layer
        layer = _pool(net, layer, 1 if published == 512 else 2)
    layer = _conv(net, "conv6", layer, size.channels(1024), 3)
    layer = _conv(net, "conv7", layer, size.channels(256), 1)
    coarse = _conv(net, "coarse.conv", layer, size.channels(512), 3)
    up = _upsample(net, _conv(net, "fine.narrow", layer, size.channels(128), 1))
    fine = _conv(net, "fine.conv", net.concat(up, shallow), size.channels(256), 3)
    found = [
        _decode(net, name, data, size.batch, classes, image // stride, stride)
        for name, data, stride in (("coarse", coarse, 32), ("fine", fine, 16))
    ]
    places = sum(len(_ANCHORS[stride]) * (image // stride) ** 2 for stride in (32, 16))
    boxes = net.node("Concat", found, "found", axis=1)
    net.output(boxes, "boxes", (size.batch, places, 5 + classes))


def _decode(
    net: NetworkBuilder, name: str, data: Layer, batch: int, classes: int, cells: int, stride: int
) -> str:
    """Boxes of a map, [batch, anchors x cells x cells, 5 + classes]."""
    anchors, values = _ANCHORS[stride], 5 + classes
    layer = net.conv(f"{name}.head", data, len(anchors) * values, 1, gain=_HEAD_GAIN, bias=True)
    apart = (batch, len(anchors), values, cells, cells)
    split = net.reshape(layer.name, apart, f"{name}.split")
    last = net.node("Transpose", [split], f"{name}.last", perm=[0, 1, 3, 4, 2])
    axis = net.integers(f"{name}.axis", 4)
    bounds = [net.integers(f"{name}.at{at}", at) for at in (0, 2, 4, 5, values)]
    middle, extent, sure, kind = (
        net.node("Slice", [last, low, high, axis], f"{name}.{part}")
        for part, low, high in zip(
            ("middle", "extent", "sure", "kind"), bounds[:-1], bounds[1:], strict=True
        )
    )
    inside = net.node("Sigmoid", [middle], f"{name}.inside")
    placed = net.node("Add", [inside, net.constant(f"{name}.grid", _grid(cells))], f"{name}.placed")
    in_cells = net.scalar(f"{name}.cell", stride / _COARSE)
    placed = net.node("Mul", [placed, in_cells], f"{name}.centre")
    factor = net.node("Exp", [extent], f"{name}.exp")
    sides = net.constant(f"{name}.anchors", _sides(anchors))
    extent = net.node("Mul", [factor, sides], f"{name}.sides")
    sure = net.node("Sigmoid", [sure], f"{name}.objectness")
    kind = net.node("Softmax", [kind], f"{name}.softmax", axis=-1)
    joined = net.node("Concat", [placed, extent, sure, kind], f"{name}.joined", axis=-1)
    return net.reshape(joined, (batch, len(anchors) * cells**2, values), f"{name}.flat")


def _grid(cells: int) -> Floats:
    """Column and row of each cell, [1, 1, cells, cells, 2]."""
    row, column = np.meshgrid(*[np.arange(cells, dtype=np.float32)] * 2, indexing="ij")
    return np.stack([column, row], axis=-1)[None, None]


def _sides(anchors: Sequence[tuple[int, int]]) -> Floats:
    """Widths and heights in coarse cells, [1, anchors, 1, 1, 2]."""
    sides = np.array(anchors, np.float32).reshape(1, len(anchors), 1, 1, 2)
    return sides / np.float32(_COARSE)


def _conv(net: NetworkBuilder, name: str, data: Layer, channels: int, kernel: int) -> Layer:
    """A convolution, batch norm and leaky ReLU."""
    gain = 1.0 if data.channels == 3 else _LEAKY_GAIN
    layer = net.conv(name, data, channels, kernel, padding=kernel // 2, gain=gain)
    layer = net.batch_norm(f"{name}.bn", layer)
    return Layer(net.node("LeakyRelu", [layer.name], alpha=_SLOPE), channels)


def _pool(net: NetworkBuilder, data: Layer, stride: int) -> Layer:
    """Of pairs of rows and columns; of stride 1 the last ones alone."""
    pooled = net.node(
        "MaxPool",
        [data.name],
        kernel_shape=[2, 2],
        strides=[stride, stride],
        auto_pad="SAME_UPPER",
    )
    return Layer(pooled, data.channels)


def _upsample(net: NetworkBuilder, data: Layer) -> Layer:
    scales = net.floats("upsample.scales", 1.0, 1.0, 2.0, 2.0)
    upsampled = net.node("Resize", [data.name, "", scales], "upsample", mode="nearest")
    return Layer(upsampled, data.channels)
