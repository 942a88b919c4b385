"""What is read or written where integers say, and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, shape_text

_RECURRENT: tuple[tuple[str, int, int, int, int, str], ...] = (
    # operator, steps, batch, inputs, hidden, direction
    ("LSTM", 50, 1, 128, 128, "forward"),
    ("LSTM", 32, 8, 64, 96, "forward"),
    ("LSTM", 40, 1, 96, 64, "bidirectional"),
    ("GRU", 50, 1, 128, 128, "forward"),
    ("GRU", 20, 4, 37, 53, "reverse"),
    ("RNN", 50, 1, 128, 128, "forward"),
)


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for name, (family, write) in _INDEXED.items():
        yield OperatorCase(family, name, write)
    for operator, steps, batch, inputs, hidden, direction in _RECURRENT:
        yield _recurrent(operator, steps, batch, inputs, hidden, direction)


def _recurrent(
    operator: str, steps: int, batch: int, inputs: int, hidden: int, direction: str
) -> OperatorCase:
    def write(net: CaseBuilder) -> str:
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator] * hidden
        ways = 2 if direction == "bidirectional" else 1
        return net.node(
            operator,
            net.input(steps, batch, inputs),
            net.weight(ways, gates, inputs, fan_in=inputs),
            net.weight(ways, gates, hidden, fan_in=hidden),
            net.weight(ways, 2 * gates, fan_in=100),
            hidden_size=hidden,
            direction=direction,
        )

    shape = shape_text((steps, batch, inputs))
    return OperatorCase("recurrent", f"{operator} {direction}: {shape} to {hidden}", write)


def _embedding(*indices: int) -> Callable[[CaseBuilder], str]:
    return lambda net: net.node("Gather", net.weight(8000, 256), net.indices(8000, *indices))


def _gather(axis: int, indices: Sequence[int], *shape: int) -> Callable[[CaseBuilder], str]:
    return lambda net: net.node(
        "Gather", net.input(*shape), net.indices(shape[axis], *indices), axis=axis
    )


def _constant_gather(net: CaseBuilder) -> str:
    return net.node("Gather", net.input(3, 1, 6, 197, 64), net.constant(np.array(1)), axis=0)


def _gather_elements(axis: int, *shape: int) -> Callable[[CaseBuilder], str]:
    return lambda net: net.node(
        "GatherElements", net.input(*shape), net.indices(shape[axis], *shape), axis=axis
    )


def _scatter_elements(
    axis: int, count: int, reduction: str, *shape: int
) -> Callable[[CaseBuilder], str]:
    def write(net: CaseBuilder) -> str:
        part = (*shape[:axis], count, *shape[axis + 1 :])
        places = net.indices(shape[axis], *part) if reduction != "none" else net.places(axis, part)
        return net.node(
            "ScatterElements",
            net.input(*shape),
            places,
            net.input(*part),
            axis=axis,
            reduction=reduction,
        )

    return write


def _scatter_tuples(
    depth: int, count: int, reduction: str, *shape: int
) -> Callable[[CaseBuilder], str]:
    """Of indices below all named extents."""

    def write(net: CaseBuilder) -> str:
        data, updates = net.input(*shape), net.input(count, *shape[depth:])
        indices = net.indices(min(shape[:depth]), count, depth)
        return net.node("ScatterND", data, indices, updates, reduction=reduction)

    return write


def _gather_tuples(depth: int, count: int, *shape: int) -> Callable[[CaseBuilder], str]:
    return lambda net: net.node(
        "GatherND", net.input(*shape), net.indices(min(shape[:depth]), count, depth)
    )


def _first(axis: int, count: int, *shape: int) -> Callable[[CaseBuilder], str]:
    """The largest elements of an axis, in order, and where they lie."""

    def write(net: CaseBuilder) -> str:
        number = net.constant(np.array([count]))
        values, places = net.nodes("TopK", 2, net.input(*shape), number, axis=axis)
        return net.node("Add", values, net.node("Cast", places, to=onnx.TensorProto.FLOAT))

    return write


def _scatter_rows(net: CaseBuilder) -> str:
    """As a key-value cache is written."""
    rows = net.node("Unsqueeze", net.permutation(64), net.constant(np.array([1])))
    return net.node("ScatterND", net.input(512, 512), rows, net.input(64, 512))


def _one_hot(net: CaseBuilder) -> str:
    return net.node(
        "OneHot", net.indices(1000, 64), net.constant(np.array([1000])), net.constant([0.0, 1.0])
    )


def _triangle(net: CaseBuilder) -> str:
    return net.node("Trilu", net.input(12, 128, 128), upper=0)


def _relative_positions(net: CaseBuilder) -> str:
    """Swin's bias: rows of a table, transposed and added to the scores."""
    table, where = net.weight(169, 4), net.constant(np.arange(2401) % 169)
    bias = net.node("Gather", table, where)
    bias = net.node("Reshape", bias, net.constant(np.array([49, 49, 4])))
    bias = net.node("Transpose", bias, perm=[2, 0, 1])
    return net.node("Add", net.input(64, 4, 49, 49), bias)


def _reversed_sequences(net: CaseBuilder) -> str:
    lengths = net.constant(np.array([40, 50, 30, 20]))
    return net.node("ReverseSequence", net.input(50, 4, 128), lengths, time_axis=0, batch_axis=1)


_INDEXED: dict[str, tuple[str, Callable[[CaseBuilder], str]]] = {
    "embedding: 128 of 8000x256": ("gather", _embedding(1, 128)),
    "embedding: 1 of 8000x256": ("gather", _embedding(1, 1)),
    "gather rows: 300 of 400x64": ("gather", _gather(0, (300,), 400, 64)),
    "gather columns: 300 of 256x400": ("gather", _gather(1, (300,), 256, 400)),
    "gather one of 3: 3x1x6x197x64": ("gather", _constant_gather),
    "GatherElements over 1: 256x512": ("gather", _gather_elements(1, 256, 512)),
    "GatherElements over 0: 256x512": ("gather", _gather_elements(0, 256, 512)),
    "relative positions: 64x4x49x49": ("gather", _relative_positions),
    "GatherND: 2000 of 64x64x100": ("gather", _gather_tuples(2, 2000, 64, 64, 100)),
    "GatherND: 20000 of 300x400": ("gather", _gather_tuples(2, 20000, 300, 400)),
    "ScatterElements add: 256x64 to 256x512": (
        "scatter",
        _scatter_elements(1, 64, "add", 256, 512),
    ),
    "ScatterElements: 200x256 to 1000x256": (
        "scatter",
        _scatter_elements(0, 200, "none", 1000, 256),
    ),
    "ScatterElements max: 8x50x64 to 8x300x64": (
        "scatter",
        _scatter_elements(1, 50, "max", 8, 300, 64),
    ),
    "ScatterND add: 5000 of 1000x64": ("scatter", _scatter_tuples(1, 5000, "add", 1000, 64)),
    "ScatterND add: 10000 of 300x400": ("scatter", _scatter_tuples(2, 10000, "add", 300, 400)),
    "ScatterND rows: 64 of 512x512": ("scatter", _scatter_rows),
    "TopK: 50 of 1x32000": ("order", _first(1, 50, 1, 32000)),
    "TopK: 300 of 1x8400": ("order", _first(1, 300, 1, 8400)),
    "TopK: 10 of 64x100": ("order", _first(1, 10, 64, 100)),
    "TopK over 1: 20 of 8x300x80": ("order", _first(1, 20, 8, 300, 80)),
    "sort: 16x64": ("order", _first(1, 64, 16, 64)),
    "OneHot: 64 of 1000": ("scatter", _one_hot),
    "Trilu: 12x128x128": ("gather", _triangle),
    "ReverseSequence: 50x4x128": ("gather", _reversed_sequences),
}
