"""Operators that count along an axis which has padding between its elements.

The axis is two of the model's, joined by a reshape: the second one ends before its room does.
"""

from __future__ import annotations

from typing import Any

from tests.compiler.frontend.onnx_models import integers
from tests.compiler.frontend.sized_cases import Case, case, floats


def _joined(nodes: str, inputs: str = "", **constants: Any) -> Case:
    """Nodes on v [n, a * b]."""
    sizes = "n 2..4: 2 4 3, a 2..5: 5 2 3, b 1..6: 3 6 1"
    return case(f"x[n,a,b]{inputs}", f"v = Reshape x [0,-1]; {nodes}", sizes, **constants)


def _in_windows(nodes: str, **constants: Any) -> Case:
    """Nodes on an image u [n, 1, a * b]."""
    return _joined(f"u = Unsqueeze v [1]; {nodes}", **constants)


_CASES: dict[str, Case] = {
    "part_from_a_computed_place": _joined("Slice v i far [1]", " int i[1]", far=integers(2**62)),
    "first_greatest": _joined("ArgMax v axis=1 keepdims=0"),
    "last_greatest": _joined("ArgMax v axis=1 select_last_index=1"),
    "last_least": _joined("ArgMin v axis=1 select_last_index=1"),
    "hard_greatest": _joined("Hardmax v axis=1"),
    "running_sum": _joined("CumSum v 1"),
    "running_sum_before": _joined("CumSum v 1 exclusive=1"),
    "running_sum_back": _joined("CumSum v 1 reverse=1"),
    "triangle": _joined("Trilu v upper=0"),
    "triangle_above": _joined("Trilu v 2 upper=1"),
    "positions_in_rows": _joined("place = ArgMax v axis=1; GatherND v place batch_dims=1"),
    "those_above_zero": _joined(
        "sums = ReduceSum v [0] keepdims=0; kept = Greater sums 0.0; Compress v kept axis=1"
    ),
    "windows": _in_windows("Conv u w pads=[1,1]", w=floats(2, 1, 3)),
    "greatest_of_windows": _in_windows("MaxPool u kernel_shape=[2]"),
    "steps": _in_windows(
        "steps = Transpose u perm=[2,0,1]; y h = GRU steps w r hidden_size=2",
        w=floats(1, 6, 1),
        r=floats(1, 6, 2),
    ),
    "twice_as_long": _in_windows("Resize u _ [1.0,1,2] mode=linear"),
}

PIECE_CASES = {f"{name}_in_pieces": case for name, case in _CASES.items()}
