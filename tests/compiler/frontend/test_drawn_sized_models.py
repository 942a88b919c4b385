"""Drawn models on data of any batch and length: what is there is onnxruntime's, at each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from tests.compiler.frontend.onnx_models import integers, model, tensor
from tests.compiler.frontend.sized_models import check_sizes
from tunefarm.compiler.types.tensor_type import Array

FEATURES = 4
Step = Callable[[str, str], list[onnx.NodeProto]]
"""Nodes from [batch, length, features] to such a value, with the names of both."""


def _plain(operator: str, *more: str, **attributes: Any) -> Step:
    return lambda x, y: [make_node(operator, [x, *more], [y], **attributes)]


def _spread(operator: str) -> Step:
    """What a reduction over the length comes to, added to each position."""
    return lambda x, y: [
        make_node(operator, [x, "length_axis"], [f"{y}_r"], keepdims=1),
        make_node("Add", [x, f"{y}_r"], [y]),
    ]


def _attends(x: str, y: str) -> list[onnx.NodeProto]:
    return [
        make_node("Transpose", [x], [f"{y}_t"], perm=[0, 2, 1]),
        make_node("MatMul", [x, f"{y}_t"], [f"{y}_s"]),
        make_node("Softmax", [f"{y}_s"], [f"{y}_w"], axis=-1),
        make_node("MatMul", [f"{y}_w", x], [y]),
    ]


def _doubled(x: str, y: str) -> list[onnx.NodeProto]:
    """Behind itself, then the first half of that, as long as it was."""
    return [
        make_node("Concat", [x, x], [f"{y}_c"], axis=1),
        make_node("Shape", [x], [f"{y}_n"], start=1, end=2),
        make_node("Slice", [f"{y}_c", "zero", f"{y}_n", "length_axis"], [y]),
    ]


def _shifted(x: str, y: str) -> list[onnx.NodeProto]:
    """The last position first, then all others."""
    return [
        make_node("Slice", [x, "last", "far", "length_axis"], [f"{y}_l"]),
        make_node("Slice", [x, "zero", "last", "length_axis"], [f"{y}_f"]),
        make_node("Concat", [f"{y}_l", f"{y}_f"], [y], axis=1),
    ]


def _flat(x: str, y: str) -> list[onnx.NodeProto]:
    """A product of rows of all sentences."""
    return [
        make_node("Reshape", [x, "rows"], [f"{y}_f"]),
        make_node("MatMul", [f"{y}_f", "weight"], [f"{y}_m"]),
        make_node("Shape", [x], [f"{y}_n"]),
        make_node("Reshape", [f"{y}_m", f"{y}_n"], [y]),
    ]


def _by_features_first(x: str, y: str) -> list[onnx.NodeProto]:
    return [
        make_node("Transpose", [x], [f"{y}_t"], perm=[2, 0, 1]),
        make_node("CumSum", [f"{y}_t", "last_axis"], [f"{y}_c"]),
        make_node("Transpose", [f"{y}_c"], [y], perm=[1, 2, 0]),
    ]


STEPS: tuple[Step, ...] = (
    _plain("Tanh"),
    _plain("Add", "bias"),
    _plain("MatMul", "weight"),
    _plain("Softmax", axis=1),
    _plain("LayerNormalization", "bias", axis=-1),
    _plain("LpNormalization", axis=1),
    _spread("ReduceMean"),
    _spread("ReduceMax"),
    _spread("ReduceSum"),
    _attends,
    _doubled,
    _shifted,
    _flat,
    _by_features_first,
)


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=5),
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 7)), min_size=2, max_size=2),
)
def test_drawn_models_give_what_is_there(steps: list[Step], sizes: list[tuple[int, int]]) -> None:
    nodes: list[onnx.NodeProto] = []
    value = "x"
    for number, step in enumerate(steps):
        nodes += step(value, f"y{number}")
        value = f"y{number}"
    constants = {
        "bias": floats(FEATURES),
        "weight": floats(FEATURES, FEATURES),
        "zero": integers(0),
        "last": integers(-1),
        "far": integers(2**62),
        "length_axis": integers(1),
        "last_axis": np.array(-1),
        "rows": integers(-1, FEATURES),
    }
    proto = model(nodes, [tensor("x", ["batch", "length", FEATURES])], [value], constants)
    bounds = {"batch": ("1..3",), "length": ("1..7",)}
    check_sizes(proto, bounds, [{"x": floats(*size, FEATURES)} for size in sizes])
