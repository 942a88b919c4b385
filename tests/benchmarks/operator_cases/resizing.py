"""Resizing: nearest, linear and cubic, up and down, plain and between convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, shape_text

_NEAREST = {
    "mode": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}
_LINEAR = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
_ALIGNED = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
_CUBIC = {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75}

_RESIZE: tuple[tuple[str, Sequence[int], Sequence[int], dict[str, Any]], ...] = (
    ("nearest x2", (1, 128, 20, 20), (40, 40), _NEAREST),
    ("nearest x2 large", (1, 64, 64, 64), (128, 128), _NEAREST),
    ("nearest x3 odd", (1, 21, 19, 23), (57, 69), _NEAREST),
    ("nearest down", (1, 64, 56, 56), (28, 28), _NEAREST),
    ("nearest to odd size", (1, 32, 30, 30), (71, 53), _NEAREST),
    ("nearest 1-D", (1, 128, 300), (600,), _NEAREST),
    ("nearest 3-D", (1, 16, 8, 16, 16), (16, 32, 32), _NEAREST),
    ("linear x2", (1, 64, 32, 32), (64, 64), _LINEAR),
    ("linear x8 of classes", (1, 21, 33, 33), (257, 257), _ALIGNED),
    ("linear x2 aligned", (1, 64, 28, 28), (56, 56), _ALIGNED),
    ("linear down", (1, 3, 480, 640), (224, 224), _LINEAR),
    ("linear to odd size", (1, 32, 30, 30), (71, 53), _LINEAR),
    ("linear 1-D", (1, 64, 500), (1000,), _LINEAR),
    ("linear 3-D", (1, 16, 8, 14, 14), (16, 28, 28), _LINEAR),
    ("cubic x2", (1, 32, 32, 32), (64, 64), _CUBIC),
    ("cubic of positions", (1, 192, 14, 14), (20, 20), _CUBIC),
)
_BETWEEN = ("nearest x2", "linear x2", "linear x2 aligned")


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for name, shape, size, attributes in _RESIZE:
        name = f"resize {name}: {shape_text(shape)} to {shape_text(size)}"
        write = partial(_alone, shape, size, attributes)
        yield OperatorCase("resize", name, write)
    for name, shape, size, attributes in _RESIZE:
        if name in _BETWEEN:
            yield _between_convolutions(name, shape, size, attributes)
    yield OperatorCase("resize", "conv, resize, softmax over channels: 1x21x33x33", _segmented)
    yield OperatorCase("resize", "resize, concat between convs: 1x64x28x28", _joined)


def _resized(
    net: CaseBuilder,
    data: str,
    shape: Sequence[int],
    size: Sequence[int],
    attributes: dict[str, Any],
) -> str:
    whole = net.constant(np.array([*shape[:2], *size]))
    return net.node("Resize", data, "", "", whole, **attributes)


def _alone(
    shape: Sequence[int], size: Sequence[int], attributes: dict[str, Any], net: CaseBuilder
) -> str:
    return _resized(net, net.input(*shape), shape, size, attributes)


def _between_convolutions(
    name: str, shape: Sequence[int], size: Sequence[int], attributes: dict[str, Any]
) -> OperatorCase:
    def write(net: CaseBuilder) -> str:
        data = net.conv(net.input(1, 16, *shape[2:]), 16, shape[1])
        return net.conv(_resized(net, data, shape, size, attributes), shape[1], 16)

    name = f"resize {name} between convs: {shape_text(shape)} to {shape_text(size)}"
    return OperatorCase("resize", name, write)


def _segmented(net: CaseBuilder) -> str:
    scores = net.conv(net.input(1, 64, 33, 33), 64, 21)
    resized = _resized(net, scores, (1, 21, 33, 33), (129, 129), _LINEAR)
    return net.node("Softmax", resized, axis=1)


def _joined(net: CaseBuilder) -> str:
    """As a decoder joins what it has upsampled with what the encoder left."""
    data = net.conv(net.input(1, 16, 28, 28), 16, 64)
    upsampled = _resized(net, data, (1, 64, 28, 28), (56, 56), _LINEAR)
    other = net.conv(net.input(1, 16, 56, 56), 16, 32)
    return net.conv(net.node("Concat", upsampled, other, axis=1), 96, 16)
