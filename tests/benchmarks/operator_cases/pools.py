"""Windows without weights: pools of all kinds, and normalisation over neighbouring channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, one_node, shape_text

_POOLS: tuple[tuple[str, str, Sequence[int], dict[str, Any]], ...] = (
    ("MaxPool", "3x3 stride 2", (1, 64, 112, 112),
     {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
    ("MaxPool", "2x2 stride 2", (1, 64, 112, 112), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("MaxPool", "3x3 stride 2 ceil odd", (1, 37, 55, 57),
     {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("MaxPool", "5x5 stride 1", (1, 128, 20, 20), {"kernel_shape": [5, 5], "pads": [2] * 4}),
    ("MaxPool", "13x13 stride 1", (1, 64, 20, 20), {"kernel_shape": [13, 13], "pads": [6] * 4}),
    ("MaxPool", "5x5 stride 5", (1, 64, 100, 100), {"kernel_shape": [5, 5], "strides": [5, 5]}),
    ("MaxPool", "3x3 stride 1", (1, 64, 28, 28), {"kernel_shape": [3, 3], "pads": [1] * 4}),
    ("MaxPool", "1-D", (1, 128, 1000), {"kernel_shape": [4], "strides": [4]}),
    ("MaxPool", "3-D", (1, 32, 8, 56, 56), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    ("AveragePool", "3x3 stride 1", (1, 192, 28, 28),
     {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
    ("AveragePool", "3x3 excluding pads", (1, 64, 35, 35),
     {"kernel_shape": [3, 3], "pads": [1] * 4}),
    ("AveragePool", "2x2 stride 2", (1, 128, 56, 56), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("AveragePool", "7x7 stride 7", (1, 64, 112, 112),
     {"kernel_shape": [7, 7], "strides": [7, 7]}),
    ("AveragePool", "7x7", (1, 512, 7, 7), {"kernel_shape": [7, 7]}),
    ("AveragePool", "1-D", (1, 64, 2000), {"kernel_shape": [5], "pads": [2, 2]}),
    ("LpPool", "2x2 stride 2", (1, 64, 56, 56),
     {"kernel_shape": [2, 2], "strides": [2, 2], "p": 2}),
    ("GlobalAveragePool", "", (1, 960, 7, 7), {}),
    ("GlobalAveragePool", "large", (1, 64, 112, 112), {}),
    ("GlobalMaxPool", "", (1, 512, 14, 14), {}),
    ("LRN", "5", (1, 64, 55, 55), {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}),
    ("LRN", "5 odd", (1, 45, 27, 27), {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 2.0}),
)  # fmt: skip
_BETWEEN = ("3x3 stride 2", "5x5 stride 1", "3x3 excluding pads", "", "5")


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for operator, name, shape, attributes in _POOLS:
        yield _pool(operator, name, shape, attributes)
    for operator, name, shape, attributes in _POOLS:
        if name in _BETWEEN:
            yield _pool_between(operator, name, shape, attributes)


def _pool(
    operator: str, name: str, shape: Sequence[int], attributes: dict[str, Any]
) -> OperatorCase:
    name = " ".join(filter(None, (operator, name))) + f": {shape_text(shape)}"
    return one_node("pool", name, operator, shape, **attributes)


def _pool_between(
    operator: str, name: str, shape: Sequence[int], attributes: dict[str, Any]
) -> OperatorCase:
    """Between two 1x1 convolutions of 16 channels, so that the data lies in blocks."""

    def write(net: CaseBuilder) -> str:
        data = net.conv(net.input(shape[0], 16, *shape[2:]), 16, shape[1])
        return net.conv(net.node(operator, data, **attributes), shape[1], 16)

    name = " ".join(filter(None, (operator, name, "between convs"))) + f": {shape_text(shape)}"
    return OperatorCase("pool", name, write)
