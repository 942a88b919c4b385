"""Samples at computed places, transforms of signals, places of maxima, and trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, shape_text

_GRIDS: tuple[tuple[tuple[int, ...], tuple[int, ...], str, str], ...] = (
    # data, places, mode, padding
    ((1, 64, 56, 56), (56, 56), "linear", "zeros"),
    ((1, 3, 224, 224), (224, 224), "linear", "border"),
    ((2, 32, 64, 64), (64, 64), "cubic", "reflection"),
    ((1, 256, 28, 28), (28, 28), "nearest", "zeros"),
    ((1, 32, 16, 24, 24), (16, 24, 24), "linear", "zeros"),
)


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for data, places, mode, padding in _GRIDS:
        name = f"GridSample {mode} {padding} {shape_text(data)}"
        yield OperatorCase("sample", name, _grid_sample(data, places, mode, padding))
    for name, (family, write) in _WRITTEN.items():
        yield OperatorCase(family, name, write)
    for trees, depth, rows in ((100, 6, 1000), (100, 6, 1), (100, 10, 256)):
        name = f"{trees} trees of depth {depth}, {rows} rows"
        yield OperatorCase("trees", name, _forest(trees, depth, rows))


def _grid_sample(
    data: Sequence[int], places: Sequence[int], mode: str, padding: str
) -> Callable[[CaseBuilder], str]:
    def write(net: CaseBuilder) -> str:
        values = net.input(*data)
        grid = net.input(data[0], *places, len(places), low=-1.0)
        return net.node("GridSample", values, grid, mode=mode, padding_mode=padding)

    return write


def _regions(net: CaseBuilder) -> str:
    data = net.input(1, 256, 50, 68)
    first = np.random.default_rng(0).uniform(0, 24, (100, 2))
    regions = np.concatenate([first, first + 20], axis=1)
    batch = net.constant(np.zeros(100, np.int64))
    given = {"output_height": 7, "output_width": 7, "sampling_ratio": 2}
    return net.node("RoiAlign", data, net.constant(regions), batch, **given)


def _deformed(net: CaseBuilder) -> str:
    data, offsets = net.input(1, 64, 32, 32), net.input(1, 18, 32, 32, low=-1.0)
    weights = net.weight(64, 64, 3, 3)
    return net.node("DeformConv", data, weights, offsets, pads=[1, 1, 1, 1])


def _transform(
    rows: int, length: int, parts: int, **attributes: int
) -> Callable[[CaseBuilder], str]:
    return lambda net: net.node(
        "DFT", net.input(rows, length, parts), "", net.constant(np.array(1)), **attributes
    )


def _frames(net: CaseBuilder) -> str:
    window = np.hanning(400)
    signal = net.input(1, 16000, 1)
    return net.node("STFT", signal, net.constant(np.array(160)), net.constant(window))


def _places(net: CaseBuilder) -> list[str]:
    data = net.input(1, 64, 56, 56)
    return net.nodes("MaxPool", 2, data, kernel_shape=[2, 2], strides=[2, 2])


def _unpool(net: CaseBuilder) -> str:
    data = net.input(1, 64, 28, 28)
    windows = {"kernel_shape": [2, 2], "strides": [2, 2]}
    pooled, places = net.nodes("MaxPool", 2, data, **windows)
    return net.node("MaxUnpool", pooled, places, **windows)


_WRITTEN: dict[str, tuple[str, Callable[[CaseBuilder], str | Sequence[str]]]] = {
    "RoiAlign 100 regions of 256x50x68": ("sample", _regions),
    "DeformConv 64x32x32 3x3": ("sample", _deformed),
    "DFT 100x512 real, one-sided": ("signal", _transform(100, 512, 1, onesided=1)),
    "DFT 16x1024 complex": ("signal", _transform(16, 1024, 2)),
    "DFT 4x1009 complex, inverse": ("signal", _transform(4, 1009, 2, inverse=1)),
    "STFT 16000, frames of 400": ("signal", _frames),
    "MaxPool with places 64x56x56": ("places", _places),
    "MaxUnpool 64x28x28": ("places", _unpool),
}


def _forest(trees: int, depth: int, rows: int) -> Callable[[CaseBuilder], str]:
    """Full trees of random nodes, numbered as a heap is."""

    def write(net: CaseBuilder) -> str:
        random, inner = np.random.default_rng(0), 2**depth - 1
        nodes = np.arange(2 * inner + 1)
        is_leaf = nodes >= inner
        count = trees * len(nodes)
        given: dict[str, Any] = {
            "nodes_treeids": np.repeat(np.arange(trees), len(nodes)),
            "nodes_nodeids": np.tile(nodes, trees),
            "nodes_featureids": random.integers(0, 32, count),
            "nodes_truenodeids": np.tile(np.where(is_leaf, 0, 2 * nodes + 1), trees),
            "nodes_falsenodeids": np.tile(np.where(is_leaf, 0, 2 * nodes + 2), trees),
            "target_treeids": np.repeat(np.arange(trees), inner + 1),
            "target_nodeids": np.tile(nodes[is_leaf], trees),
            "target_ids": np.zeros(trees * (inner + 1), np.int64),
        }
        lists = {name: values.tolist() for name, values in given.items()}
        lists["nodes_values"] = random.standard_normal(count).tolist()
        lists["target_weights"] = random.standard_normal(trees * (inner + 1)).tolist()
        modes = np.where(is_leaf, "LEAF", "BRANCH_LEQ").tolist() * trees
        data = net.input(rows, 32)
        return net.node(
            "TreeEnsembleRegressor",
            data,
            domain="ai.onnx.ml",
            n_targets=1,
            nodes_modes=modes,
            **lists,
        )

    return write
