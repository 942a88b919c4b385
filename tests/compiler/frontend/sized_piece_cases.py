"""Operators that count along an axis which has padding between its elements.

The axis is two of the model's, joined by a reshape: the second one ends before its room does.
"""

from __future__ import annotations

from typing import Any

import onnx

from tests.compiler.frontend.onnx_models import integers, node
from tests.compiler.frontend.sized_cases import Case, floats
from tunefarm.compiler.types.tensor_type import Array

SIZES = [{"n": 2, "a": 5, "b": 3}, {"n": 4, "a": 2, "b": 6}, {"n": 3, "a": 3, "b": 1}]


def _joined(*nodes: onnx.NodeProto, **constants: Array) -> Case:
    """Nodes on v [n, a * b]."""
    return Case(
        [node("Reshape", "x [0,-1]", "v"), *nodes],
        {"x": ("n", "a", "b")},
        {"n": "2..4", "a": "2..5", "b": "1..6"},
        SIZES,
        constants,
    )


def _of_rows(operator: str, **attributes: Any) -> Case:
    return _joined(node(operator, "v", axis=1, **attributes))


def _in_windows(*nodes: onnx.NodeProto, **constants: Array) -> Case:
    """Nodes on an image u [n, 1, a * b]."""
    return _joined(node("Unsqueeze", "v [1]", "u"), *nodes, **constants)


_CASES: dict[str, Case] = {
    "part_from_a_computed_place": Case(
        [node("Reshape", "x [0,-1]", "v"), node("Slice", "v i far [1]")],
        {"x": ("n", "a", "b"), "i": (1,)},
        {"n": "2..4", "a": "2..5", "b": "1..6"},
        SIZES,
        {"far": integers(2**62)},
        integers=("i",),
    ),
    "first_greatest": _of_rows("ArgMax", keepdims=0),
    "last_greatest": _of_rows("ArgMax", select_last_index=1),
    "last_least": _of_rows("ArgMin", select_last_index=1),
    "hard_greatest": _of_rows("Hardmax"),
    "running_sum": _joined(node("CumSum", "v 1")),
    "running_sum_before": _joined(node("CumSum", "v 1", exclusive=1)),
    "running_sum_back": _joined(node("CumSum", "v 1", reverse=1)),
    "triangle": _joined(node("Trilu", "v", upper=0)),
    "triangle_above": _joined(node("Trilu", "v 2", upper=1)),
    "positions_in_rows": _joined(
        node("ArgMax", "v", "place", axis=1), node("GatherND", "v place", batch_dims=1)
    ),
    "those_above_zero": _joined(
        node("ReduceSum", "v [0]", "sums", keepdims=0),
        node("Greater", "sums 0.0", "kept"),
        node("Compress", "v kept", axis=1),
    ),
    "windows": _in_windows(node("Conv", "u w", pads=[1, 1]), w=floats(2, 1, 3)),
    "greatest_of_windows": _in_windows(node("MaxPool", "u", kernel_shape=[2])),
    "steps": _in_windows(
        node("Transpose", "u", "steps", perm=[2, 0, 1]),
        node("GRU", "steps w r", "y h", hidden_size=2),
        w=floats(1, 6, 1),
        r=floats(1, 6, 2),
    ),
    "twice_as_long": _in_windows(node("Resize", "u _ [1.0,1,2]", mode="linear")),
}

PIECE_CASES = {f"{name}_in_pieces": case for name, case in _CASES.items()}
