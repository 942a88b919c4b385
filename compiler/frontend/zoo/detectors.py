"""Detectors: YOLOv8n and YOLOv3-tiny."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.frontend.zoo.network import (
    SILU_GAIN,
    Floats,
    Layer,
    NetworkBuilder,
    Size,
    scaled,
    silu,
)

_CHANNELS, _REPEATS = (16, 32, 64, 128, 256), (0, 1, 2, 2, 1)
_STRIDES = (8, 16, 32)
_BINS = 16
_RESIDUAL_GAIN = 1.0  # below SILU_GAIN, so that sums over many layers stay of order 1
_BOX_CHANNELS, _CLASS_CHANNELS = 64, 80  # of the head


def yolov8n(net: NetworkBuilder, size: Size) -> None:
    """YOLOv8n (Jocher et al., Ultralytics YOLOv8, 2023), a detector without anchor boxes, with
    batch norm folded as its exporter does. Outputs are boxes (centre, width, height in pixels) and
    scores.

    Sides of boxes are means over bins: Li et al., Generalized Focal Loss (arXiv:2006.04388).

    The image's extent must be a multiple of 32.
    """
    image, classes = size.image or 320, size.classes or 80
    widths = [size.channels(channels) for channels in _CHANNELS]
    maps = _backbone(net, net.image(size, 320), widths)
    maps = _neck(net, maps, widths)
    levels = [_head(net, f"head{level}", layer, size, classes) for level, layer in enumerate(maps)]
    places = sum((image // stride) ** 2 for stride in _STRIDES)
    channels = 4 * _BINS + classes
    flat = [
        net.reshape(level, (size.batch, channels, -1), f"head{number}.flat")
        for number, level in enumerate(levels)
    ]
    joined = net.node("Concat", flat, "levels", axis=2)
    parts = net.integers("parts", 4 * _BINS, classes)
    bins, logits = net.nodes("Split", [joined, parts], 2, "split", axis=1)
    boxes = _boxes(net, bins, size.batch, image, places)
    net.output(boxes, "boxes", (size.batch, 4, places))
    net.output(net.node("Sigmoid", [logits], "scores"), "scores", (size.batch, classes, places))


def _backbone(net: NetworkBuilder, data: Layer, widths: list[int]) -> list[Layer]:
    """The feature maps of an 8th, a 16th and a 32nd of the image."""
    maps = []
    for stage, (channels, repeats) in enumerate(zip(widths, _REPEATS, strict=True)):
        data = _conv(net, f"stage{stage}.down", data, channels, 3, 2, 1.0 if stage == 0 else None)
        if repeats:
            data = _cross_stage(net, f"stage{stage}", data, channels, repeats, residual=True)
        maps.append(data)
    maps[-1] = _pools(net, "pools", maps[-1])
    return maps[2:]


def _neck(net: NetworkBuilder, maps: list[Layer], widths: list[int]) -> list[Layer]:
    """Coarse maps upsampled to the finer ones, and these again down."""
    fine, middle, coarse = maps
    middle = net.concat(_upsample(net, "up0", coarse), middle)
    middle = _cross_stage(net, "neck0", middle, widths[3], 1)
    fine = net.concat(_upsample(net, "up1", middle), fine)
    fine = _cross_stage(net, "neck1", fine, widths[2], 1)
    down = _conv(net, "neck2.down", fine, widths[2], 3, 2)
    middle = _cross_stage(net, "neck2", net.concat(down, middle), widths[3], 1)
    down = _conv(net, "neck3.down", middle, widths[3], 3, 2)
    coarse = _cross_stage(net, "neck3", net.concat(down, coarse), widths[4], 1)
    return [fine, middle, coarse]


def _head(net: NetworkBuilder, name: str, data: Layer, size: Size, classes: int) -> str:
    """Bins of the four sides and logits of the classes at each place."""
    parts = []
    for part, published, channels in (
        ("box", _BOX_CHANNELS, 4 * _BINS),
        ("class", _CLASS_CHANNELS, classes),
    ):
        layer = data
        for number in range(2):
            width = size.channels(published)
            layer = _conv(net, f"{name}.{part}{number}", layer, width, 3)
        layer = net.conv(f"{name}.{part}", layer, channels, 1, gain=1.0, bias=True)
        parts.append(layer)
    return net.concat(*parts).name


def _boxes(net: NetworkBuilder, bins: str, batch: int, image: int, places: int) -> str:
    """Distances to the four sides of a box, each a mean over bins, to centre and extent."""
    apart = net.reshape(bins, (batch, 4, _BINS, places), "bins")
    turned = net.node("Transpose", [apart], "bins.first", perm=[0, 2, 1, 3])
    shares = net.node("Softmax", [turned], "bins.softmax", axis=1)
    values = np.arange(_BINS, dtype=np.float32).reshape(1, _BINS, 1, 1)
    weight = net.constant("bins.values", values)
    mean = net.node("Conv", [shares, weight], "bins.mean", kernel_shape=[1, 1])
    sides = net.reshape(mean, (batch, 4, places), "sides")
    bounds = [net.integers(f"sides.at{at}", at) for at in (0, 2, 4)]
    axis = net.integers("sides.axis", 1)
    before = net.node("Slice", [sides, bounds[0], bounds[1], axis], "before")
    after = net.node("Slice", [sides, bounds[1], bounds[2], axis], "after")
    anchors, strides = _anchors(image)
    middles = net.constant("anchors", anchors)
    low = net.node("Sub", [middles, before], "low")
    high = net.node("Add", [middles, after], "high")
    summed = net.node("Add", [low, high], "summed")
    centre = net.node("Div", [summed, net.scalar("two", 2.0)], "centre")
    extent = net.node("Sub", [high, low], "extent")
    boxes = net.node("Concat", [centre, extent], "boxes.cells", axis=1)
    return net.node("Mul", [boxes, net.constant("strides", strides)], "boxes.pixels")


def _anchors(image: int) -> tuple[Floats, Floats]:
    """The middles of all places in cells, [1, 2, places], and their strides, [1, places]."""
    middles, strides = [], []
    for stride in _STRIDES:
        cells = np.arange(image // stride, dtype=np.float32) + np.float32(0.5)
        y, x = np.meshgrid(cells, cells, indexing="ij")
        middles.append(np.stack([x.ravel(), y.ravel()]))
        strides.append(np.full((1, x.size), stride, np.float32))
    return np.concatenate(middles, axis=1)[None], np.concatenate(strides, axis=1)


def _conv(
    net: NetworkBuilder,
    name: str,
    data: Layer,
    channels: int,
    kernel: int,
    stride: int = 1,
    gain: float | None = None,
) -> Layer:
    """A convolution and SiLU."""
    layer = net.conv(
        f"{name}.conv",
        data,
        channels,
        kernel,
        stride=stride,
        padding=kernel // 2,
        gain=SILU_GAIN if gain is None else gain,
        bias=True,
    )
    return silu(net, layer)


def _cross_stage(
    net: NetworkBuilder,
    name: str,
    data: Layer,
    channels: int,
    repeats: int,
    *,
    residual: bool = False,
) -> Layer:
    """Half of the channels go through bottlenecks, whose outputs all go on ("C2f")."""
    half = channels // 2
    whole = _conv(net, f"{name}.in", data, 2 * half, 1)
    sizes = net.integers(f"{name}.sizes", half, half)
    halves = net.nodes("Split", [whole.name, sizes], 2, f"{name}.split", axis=1)
    parts = [Layer(part, half) for part in halves]
    for number in range(repeats):
        layer = _conv(net, f"{name}.{number}.a", parts[-1], half, 3)
        layer = _conv(net, f"{name}.{number}.b", layer, half, 3, 1, _RESIDUAL_GAIN)
        parts.append(net.add(parts[-1], layer) if residual else layer)
    return _conv(net, f"{name}.out", net.concat(*parts), channels, 1)


def _pools(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    """Pools over pools of half of the channels, side by side ("SPPF")."""
    parts = [_conv(net, f"{name}.in", data, data.channels // 2, 1)]
    for _ in range(3):
        parts.append(net.max_pool(parts[-1], 5, 1, padding=2))
    return _conv(net, f"{name}.out", net.concat(*parts), data.channels, 1, 1, 1.0)


def _upsample(net: NetworkBuilder, name: str, data: Layer) -> Layer:
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return scaled(net, name, data, 2.0, mode="nearest", **how)


_TINY_CHANNELS = (16, 32, 64, 128, 256, 512)
_COARSE = 32  # pixels of a cell
_ANCHORS = {32: ((81, 82), (135, 169), (344, 319)), 16: ((10, 14), (23, 27), (37, 58))}  # pixels
_SLOPE = 0.1
_LEAKY_GAIN = 1.98
_HEAD_GAIN = 0.1  # so that exponentials stay of order 1


def yolov3_tiny(net: NetworkBuilder, size: Size) -> None:
    """YOLOv3-tiny: Redmon and Farhadi, YOLOv3 (arXiv:1804.02767), with classes by softmax as in
    YOLO9000 (arXiv:1612.08242). The output are boxes (centre, width, height in cells of the coarse
    map), whether there is something, and the classes' probabilities, for each anchor at each place.

    The image's extent must be a multiple of 32.
    """
    image, classes = size.image or 256, size.classes or 80
    shallow = layer = net.image(size, 256)
    for number, published in enumerate(_TINY_CHANNELS):
        layer = _leaky_conv(net, f"conv{number}", layer, size.channels(published), 3)
        if published == 256:
            shallow = layer
        layer = _pool(net, layer, 1 if published == 512 else 2)
    layer = _leaky_conv(net, "conv6", layer, size.channels(1024), 3)
    layer = _leaky_conv(net, "conv7", layer, size.channels(256), 1)
    coarse = _leaky_conv(net, "coarse.conv", layer, size.channels(512), 3)
    up = _upsample_tiny(net, _leaky_conv(net, "fine.narrow", layer, size.channels(128), 1))
    fine = _leaky_conv(net, "fine.conv", net.concat(up, shallow), size.channels(256), 3)
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


def _leaky_conv(net: NetworkBuilder, name: str, data: Layer, channels: int, kernel: int) -> Layer:
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


def _upsample_tiny(net: NetworkBuilder, data: Layer) -> Layer:
    scales = net.floats("upsample.scales", 1.0, 1.0, 2.0, 2.0)
    upsampled = net.node("Resize", [data.name, "", scales], "upsample", mode="nearest")
    return Layer(upsampled, data.channels)
