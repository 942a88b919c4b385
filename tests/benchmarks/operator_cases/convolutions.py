"""Convolutions of all kinds: plain and blocked surroundings, 1-D to 3-D, grouped, transposed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, shape_text

# name, shape, output channels, kernel, attributes
_PLAIN: tuple[tuple[str, Sequence[int], int, Sequence[int], dict[str, Any]], ...] = (
    ("stem 7x7 stride 2", (1, 3, 224, 224), 64, (7, 7), {"strides": [2, 2], "pads": [3] * 4}),
    ("stem 3x3 stride 2", (1, 3, 224, 224), 32, (3, 3), {"strides": [2, 2], "pads": [1] * 4}),
    ("stem 3x3 stride 2 no pads", (1, 3, 299, 299), 32, (3, 3), {"strides": [2, 2]}),
    ("patches 16x16", (1, 3, 224, 224), 192, (16, 16), {"strides": [16, 16]}),
    ("patches 4x4", (1, 3, 224, 224), 96, (4, 4), {"strides": [4, 4]}),
    ("gray 3x3", (1, 1, 128, 128), 16, (3, 3), {"pads": [1] * 4}),
    ("few outputs 3x3", (1, 64, 112, 112), 3, (3, 3), {"pads": [1] * 4}),
    ("one output 1x1", (1, 64, 112, 112), 1, (1, 1), {}),
    ("3x3", (1, 64, 56, 56), 64, (3, 3), {"pads": [1] * 4}),
    ("3x3 deep", (1, 512, 7, 7), 512, (3, 3), {"pads": [1] * 4}),
    ("3x3 odd", (1, 35, 61, 47), 53, (3, 3), {"pads": [1] * 4}),
    ("3x3 stride 2", (1, 128, 56, 56), 128, (3, 3), {"strides": [2, 2], "pads": [1] * 4}),
    ("3x3 stride 2 few inputs", (1, 6, 112, 112), 24, (3, 3), {"strides": [2, 2], "pads": [1] * 4}),
    ("3x3 stride 3", (1, 32, 96, 96), 64, (3, 3), {"strides": [3, 3]}),
    ("3x3 dilated", (1, 256, 33, 33), 64, (3, 3), {"pads": [6] * 4, "dilations": [6, 6]}),
    ("3x3 dilated by 2", (1, 64, 56, 56), 64, (3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    ("3x3 dilated by 4", (1, 64, 56, 56), 64, (3, 3), {"pads": [4] * 4, "dilations": [4, 4]}),
    ("3x3 dilated by 12", (1, 64, 56, 56), 64, (3, 3), {"pads": [12] * 4, "dilations": [12, 12]}),
    ("5x5", (1, 32, 56, 56), 64, (5, 5), {"pads": [2] * 4}),
    ("1x7", (1, 128, 17, 17), 128, (1, 7), {"pads": [0, 3, 0, 3]}),
    ("1x1", (1, 256, 28, 28), 128, (1, 1), {}),
    ("1x1 stride 2", (1, 256, 56, 56), 512, (1, 1), {"strides": [2, 2]}),
    ("1x1 on one pixel", (1, 960, 1, 1), 240, (1, 1), {}),
    ("3x3 batch 8", (8, 32, 28, 28), 64, (3, 3), {"pads": [1] * 4}),
)
_DEPTHWISE: tuple[tuple[str, Sequence[int], int, dict[str, Any]], ...] = (
    ("3x3", (1, 96, 56, 56), 3, {"pads": [1] * 4}),
    ("3x3 stride 2", (1, 96, 112, 112), 3, {"strides": [2, 2], "pads": [1] * 4}),
    ("3x3 odd", (1, 37, 29, 31), 3, {"pads": [1] * 4}),
    ("3x3 dilated", (1, 64, 33, 33), 3, {"pads": [2] * 4, "dilations": [2, 2]}),
    ("5x5", (1, 120, 28, 28), 5, {"pads": [2] * 4}),
    ("5x5 stride 2", (1, 72, 56, 56), 5, {"strides": [2, 2], "pads": [2] * 4}),
    ("7x7", (1, 96, 56, 56), 7, {"pads": [3] * 4}),
    ("7x7 of a large image", (1, 48, 160, 160), 7, {"pads": [3] * 4}),
    ("13x13", (1, 32, 112, 112), 13, {"pads": [6] * 4}),
)
_GROUPED: tuple[tuple[str, Sequence[int], int, int, dict[str, Any]], ...] = (
    ("2 groups", (1, 64, 28, 28), 128, 2, {"pads": [1] * 4}),
    ("4 groups odd", (1, 36, 29, 29), 52, 4, {"pads": [1] * 4}),
    ("32 groups of 4", (1, 128, 56, 56), 128, 32, {"pads": [1] * 4}),
    ("32 groups of 4 stride 2", (1, 128, 56, 56), 128, 32, {"strides": [2, 2], "pads": [1] * 4}),
    ("8 groups of 24", (1, 192, 14, 14), 192, 8, {"pads": [1] * 4}),
    ("depth multiplier 2", (1, 32, 56, 56), 64, 32, {"pads": [1] * 4}),
)
_OTHER_RANKS: tuple[tuple[str, Sequence[int], int, Sequence[int], int, dict[str, Any]], ...] = (
    ("1-D speech stem", (1, 80, 1000), 256, (3,), 1, {"pads": [1, 1]}),
    ("1-D speech stem stride 2", (1, 256, 1000), 256, (3,), 1, {"strides": [2], "pads": [1, 1]}),
    ("1-D of 400", (1, 80, 400), 80, (3,), 1, {"pads": [1, 1]}),
    ("1-D wide", (1, 384, 1500), 384, (3,), 1, {"pads": [1, 1]}),
    ("1-D of embedded bytes", (1, 64, 2048), 256, (5,), 1, {}),
    ("1-D waveform", (1, 1, 16000), 64, (10,), 1, {"strides": [5]}),
    ("1-D dilated", (1, 64, 2000), 64, (3,), 1, {"pads": [8, 8], "dilations": [8]}),
    ("1-D depthwise 31", (1, 256, 300), 256, (31,), 256, {"pads": [15, 15]}),
    ("1-D 1", (1, 192, 500), 192, (1,), 1, {}),
    ("3-D", (1, 16, 16, 28, 28), 32, (3, 3, 3), 1, {"pads": [1] * 6}),
    ("3-D stem", (1, 3, 8, 112, 112), 32, (3, 3, 3), 1, {"strides": [1, 2, 2], "pads": [1] * 6}),
    ("3-D odd", (1, 13, 9, 17, 19), 21, (3, 3, 3), 1, {"pads": [1] * 6}),
    ("3-D depthwise", (1, 32, 8, 28, 28), 32, (3, 3, 3), 32, {"pads": [1] * 6}),
    ("3-D 1x3x3", (1, 32, 8, 28, 28), 64, (1, 3, 3), 1, {"pads": [0, 1, 1, 0, 1, 1]}),
)
_TRANSPOSED: tuple[tuple[str, Sequence[int], int, Sequence[int], int, dict[str, Any]], ...] = (
    ("2x2 stride 2", (1, 128, 28, 28), 64, (2, 2), 1, {"strides": [2, 2]}),
    ("2x2 stride 2 odd", (1, 37, 19, 23), 29, (2, 2), 1, {"strides": [2, 2]}),
    ("4x4 stride 2", (1, 128, 16, 16), 64, (4, 4), 1, {"strides": [2, 2], "pads": [1] * 4}),
    ("4x4 stride 2 to image", (1, 64, 64, 64), 3, (4, 4), 1, {"strides": [2, 2], "pads": [1] * 4}),
    ("3x3 stride 2", (1, 64, 28, 28), 32, (3, 3), 1,
     {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
    ("3x3 stride 1", (1, 64, 28, 28), 32, (3, 3), 1, {"pads": [1] * 4}),
    ("first of a generator", (1, 100, 1, 1), 256, (4, 4), 1, {}),
    ("depthwise 4x4 stride 2", (1, 21, 32, 32), 21, (4, 4), 21,
     {"strides": [2, 2], "pads": [1] * 4}),
    ("16x16 stride 8", (1, 21, 34, 34), 21, (16, 16), 1, {"strides": [8, 8]}),
    ("1-D stride 4", (1, 128, 250), 64, (8,), 1, {"strides": [4], "pads": [2, 2]}),
    ("3-D stride 2", (1, 32, 8, 14, 14), 16, (2, 2, 2), 1, {"strides": [2, 2, 2]}),
)  # fmt: skip


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for name, shape, outputs, kernel, attributes in _PLAIN:
        yield _conv("conv", name, shape, outputs, kernel, 1, attributes)
    for name, shape, size, attributes in _DEPTHWISE:
        kernel = (size, size)
        yield _conv("depthwise", name, shape, shape[1], kernel, shape[1], attributes)
        yield _between("depthwise", name, shape, shape[1], kernel, shape[1], attributes)
    for name, shape, outputs, kernel, attributes in _PLAIN:
        if "dilated by" in name:
            yield _between("conv", name, shape, outputs, kernel, 1, attributes)
    for name, shape, outputs, groups, attributes in _GROUPED:
        yield _conv("grouped conv", name, shape, outputs, (3, 3), groups, attributes)
    for name, shape, outputs, groups, attributes in (_GROUPED[0], _GROUPED[2]):
        yield _between("grouped conv", name, shape, outputs, (3, 3), groups, attributes)
    for name, shape, outputs, kernel, groups, attributes in _OTHER_RANKS:
        yield _conv("conv 1-D, 3-D", name, shape, outputs, kernel, groups, attributes)
    for name, shape, outputs, kernel, groups, attributes in _TRANSPOSED:
        yield _conv("conv transpose", name, shape, outputs, kernel, groups, attributes)
    for name, shape, outputs, kernel, groups, attributes in (_TRANSPOSED[0], _TRANSPOSED[2]):
        yield _between("conv transpose", name, shape, outputs, kernel, groups, attributes)


def _conv(
    family: str,
    name: str,
    shape: Sequence[int],
    outputs: int,
    kernel: Sequence[int],
    groups: int,
    attributes: dict[str, Any],
) -> OperatorCase:
    def write(net: CaseBuilder) -> str:
        return _node(net, family, net.input(*shape), shape[1], outputs, kernel, groups, attributes)

    return OperatorCase(family, f"{family} {name}: {shape_text(shape)} to {outputs}", write)


def _between(
    family: str,
    name: str,
    shape: Sequence[int],
    outputs: int,
    kernel: Sequence[int],
    groups: int,
    attributes: dict[str, Any],
) -> OperatorCase:
    """Between two 1x1 convolutions of 16 channels, so that the data lies in blocks."""

    def write(net: CaseBuilder) -> str:
        data = net.conv(net.input(shape[0], 16, *shape[2:]), 16, shape[1])
        data = _node(net, family, data, shape[1], outputs, kernel, groups, attributes)
        return net.conv(net.node("Relu", data), outputs, 16)

    name = f"{family} {name} between convs: {shape_text(shape)} to {outputs}"
    return OperatorCase(family, name, write)


def _node(
    net: CaseBuilder,
    family: str,
    data: str,
    inputs: int,
    outputs: int,
    kernel: Sequence[int],
    groups: int,
    attributes: dict[str, Any],
) -> str:
    if family == "conv transpose":
        filters = net.weight(inputs, outputs // groups, *kernel, fan_in=4 * inputs // groups)
        bias = net.weight(outputs, fan_in=100)
        return net.node("ConvTranspose", data, filters, bias, group=groups, **attributes)
    filters = net.weight(outputs, inputs // groups, *kernel)
    bias = net.weight(outputs, fan_in=100)
    return net.node("Conv", data, filters, bias, group=groups, **attributes)
