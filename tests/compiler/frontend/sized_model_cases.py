"""Several operators in a row on data of dynamic shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.compiler.frontend.onnx_models import node
from tests.compiler.frontend.sized_cases import Case, floats, on_rows, on_shapes, with_second
from tunefarm.compiler.types.tensor_type import Array

SIZES = [{"s": 1, "b": 2}, {"s": 5, "b": 1}, {"s": 7, "b": 3}]


def _steps(
    nodes: list[onnx.NodeProto], constants: dict[str, Array], outputs: tuple[str, ...]
) -> Case:
    """On x [steps, batch, 4]."""
    return Case(
        nodes, {"x": ("s", "b", 4)}, {"s": "1..7", "b": "1..3"}, SIZES, constants, outputs=outputs
    )


def _recurrent(op: str, g: int, d: int = 1, **kw: Any) -> Case:
    return _steps(
        [
            helper.make_node(
                op,
                ["x", "w", "r", "bb"],
                ["y", "h"] + (["c"] if op == "LSTM" else []),
                hidden_size=3,
                **kw,
            )
        ],
        {"w": floats(d, 3 * g, 4), "r": floats(d, 3 * g, 3), "bb": floats(d, 6 * g)},
        ("y", "h"),
    )


HALF = [node("Gather", "shape 1", "s"), node("Div", "s 2", "hs"), node("Unsqueeze", "hs [0]", "hu")]
"""Nodes from x's shape to half of its length, hu."""


def _resized(height_and_width: list[onnx.NodeProto], **how: str) -> list[onnx.NodeProto]:
    """x resized to what nodes make of its shape sx: to_hw."""
    return [
        node("Shape", "x", "sx"),
        *height_and_width,
        node("Slice", "sx [0] [2]", "nc"),
        node("Concat", "nc to_hw", "to", axis=0),
        node("Resize", "x _ _ to", **how),
    ]


MORE_CASES: dict[str, Case] = {
    "lstm": _recurrent("LSTM", 4),
    "gru": _recurrent("GRU", 3),
    "rnn": _recurrent("RNN", 1),
    "lstm_bi": _recurrent("LSTM", 4, 2, direction="bidirectional"),
    "gru_rev": _recurrent("GRU", 3, 1, direction="reverse"),
    "einsum": with_second([node("Einsum", "x z", equation="bsd,btd->bst")], ("b", "s", 6)),
    "einsum2": with_second([node("Einsum", "x z", equation="bsd,bsd->bd")], ("b", "s", 6)),
    "scatter_elements": Case(
        [node("ScatterElements", "x i u", axis=1)],
        {"x": ("b", "s", 6), "i": ("b", "s", 6), "u": ("b", "s", 6)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        integers=("i",),
    ),
    "scatter_nd": Case(
        [node("ScatterND", "x i u")],
        {"x": ("s", 6), "i": ("n", 1), "u": ("n", 6)},
        {"s": "3..7", "n": "1..3"},
        [{"s": 3, "n": 2}, {"s": 6, "n": 3}],
        integers=("i",),
    ),
    "gather_elements": Case(
        [node("GatherElements", "x i", axis=1)],
        {"x": ("b", "s", 6), "i": ("b", "s", 6)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        integers=("i",),
    ),
    "gather_elements of fewer rows": Case(
        [node("GatherElements", "x i", axis=1)],
        {"x": (4, 6), "i": ("n", 3)},
        {"n": "1..9"},
        [{"n": 2}, {"n": 4}, {"n": 1}],
        integers=("i",),
    ),
    "layer norm of a scale of any size": Case(
        [node("LayerNormalization", "x z", axis=1)],
        {"x": ("b", 3, 4), "z": ("n", 4)},
        {"b": "1..3", "n": "1..5"},
        [{"b": 2, "n": 3}],
    ),
    "reduced along a computed axis": Case(
        [node("ReduceMean", "x i", keepdims=0)],
        {"x": ("b", "s", 6), "i": (1,)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": size} for size in (3, 5, 4, 7)],
        integers=("i",),
    ),
    "reduced along a computed axis that stays": Case(
        [node("ReduceL2", "x i")],
        {"x": ("b", "s", 6), "i": (1,)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": size} for size in (3, 5, 4, 7)],
        integers=("i",),
    ),
    "summed along a computed axis": Case(
        [node("CumSum", "x i", reverse=1)],
        {"x": ("b", "s", 6), "i": ()},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": size} for size in (3, 5, 4, 7)],
        integers=("i",),
    ),
    "unsqueezed at a computed axis": Case(
        [node("Unsqueeze", "x i")],
        {"x": ("b", "s"), "i": (1,)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": size} for size in (3, 5, 4, 7)],
        integers=("i",),
    ),
    "gather_ids": Case(
        [node("Gather", "table i", "y")],
        {"i": ("b", "s")},
        {"b": "1..3", "s": "1..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        {"table": floats(9, 4)},
        integers=("i",),
    ),
    "gather_nd": Case(
        [node("GatherND", "x i", "y", batch_dims=1)],
        {"x": ("b", "s", 6), "i": ("b", 1)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        integers=("i",),
    ),
    "one_hot": Case(
        [node("OneHot", "i 4 [0.0,1]", "y")],
        {"i": ("b", "s")},
        {"b": "1..3", "s": "1..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        integers=("i",),
    ),
    "one_hot of a computed depth": Case(
        [
            node("Add", "i 2", "d"),
            node("ReduceMax", "d", keepdims=0),
            node("OneHot", "i y [0.0,1]", "z"),
        ],
        {"i": ("s",)},
        {"s": "1..7"},
        [{"s": 3}, {"s": 5}],
        outputs=("z",),
        integers=("i",),
    ),
    "causal": on_shapes(
        node("Gather", "shape 1", "s"),
        node("Unsqueeze", "s [0]", "su"),
        node("Concat", "su su", "ss", axis=0),
        node(
            "ConstantOfShape",
            "ss",
            "m",
            value=onnx.numpy_helper.from_array(np.array([-9.0], np.float32)),
        ),
        node("Trilu", "m 1", "tri", upper=1),
        node("Transpose", "x", "xt", perm=[0, 2, 1]),
        node("MatMul", "x xt", "sc"),
        node("Add", "sc tri", "ma"),
        node("Softmax", "ma", "w", axis=-1),
        node("MatMul", "w x"),
    ),
    "mask_mean": Case(
        [
            node("Unsqueeze", "m [2]", "mu"),
            node("Cast", "mu", "mf", to=1),
            node("Mul", "x mf", "xm"),
            node("ReduceSum", "xm [1]", "su", keepdims=0),
            node("ReduceSum", "mf [1]", "cn", keepdims=0),
            node("Clip", "cn 1e-09", "cl"),
            node("Div", "su cl"),
        ],
        {"x": ("b", "s", 6), "m": ("b", "s")},
        {"b": "1..3", "s": "1..7"},
        [{"b": 2, "s": 3}, {"b": 3, "s": 7}],
        integers=("m",),
    ),
    "positions_cumsum": Case(
        [
            node("CumSum", "m 1", "c"),
            node("Sub", "c 1", "p"),
            node("Max", "p 0", "q"),
            node("Gather", "t q", "y"),
        ],
        {"m": ("b", "s")},
        {"b": "1..3", "s": "1..4"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 4}],
        {"t": floats(9, 4)},
        integers=("m",),
    ),
    "windows": Case(
        [
            node("Shape", "x", "sh"),
            node("Gather", "sh 1", "h"),
            node("Gather", "sh 0", "b"),
            node("Div", "h 4", "hw"),
            node("Unsqueeze", "b [0]", "bu"),
            node("Unsqueeze", "hw [0]", "hu"),
            node("Concat", "bu hu [4] [6]", "to", axis=0),
            node("Reshape", "x to", "r"),
            node("ReduceMean", "r [2]", "y", keepdims=0),
        ],
        {"x": ("b", "h", 6)},
        {"b": "1..2", "h": "4..12"},
        [{"b": 1, "h": 4}, {"b": 2, "h": 12}],
    ),
    "reshape_move": on_shapes(node("Reshape", "x [0,6,-1]")),
    "batch that another input names": Case(
        [
            node("Shape", "z", "count", end=1),
            node("Concat", "count [-1]", "to", axis=0),
            node("Reshape", "x to"),
        ],
        {"x": ("b", "s", 6), "z": ("c",)},
        {"b": "1..3", "s": "2..7", "c": "1..4"},
        [{"b": 1, "s": 3, "c": 1}, {"b": 2, "s": 7, "c": 2}, {"b": 3, "s": 4, "c": 3}],
    ),
    "flatten_batch_rows": on_shapes(
        node("Reshape", "x [-1,6]", "f"),
        node("MatMul", "f w", "g"),
        node("Gather", "shape 0", "b"),
        node("Unsqueeze", "b [0]", "bu"),
        node("Concat", "bu [-1] [5]", "to2", axis=0),
        node("Reshape", "g to2"),
        w=floats(6, 5),
    ),
    "where_mask": Case(
        [
            node("Cast", "m", "mb", to=9),
            node("Unsqueeze", "mb [2]", "mu"),
            node("Where", "mu x -1000000000.0", "y"),
        ],
        {"x": ("b", "s", 6), "m": ("b", "s")},
        {"b": "1..3", "s": "1..7"},
        [{"b": 2, "s": 3}],
        integers=("m",),
    ),
    "size_float_sqrt": on_shapes(
        node("Gather", "shape 1", "s"),
        node("Cast", "s", "f", to=1),
        node("Sqrt", "f", "q"),
        node("Div", "x q"),
    ),
    "div_floor_shape": on_shapes(*HALF, node("Slice", "x [0] hu [1]", "y")),
    "second_half": on_shapes(*HALF, node("Slice", "x hu [4611686018427387904] [1]", "y")),
    "expand_like": with_second(
        [node("Shape", "x", "sx"), node("Expand", "z sx", "e"), node("Add", "x e")], ("b", 1, 6)
    ),
    "resize_sizes_of": Case(
        _resized(
            [node("Shape", "z", "sz"), node("Slice", "sz [2] [4]", "to_hw")],
            mode="linear",
            coordinate_transformation_mode="half_pixel",
        ),
        {"x": ("b", 3, "h", "w"), "z": ("b", 3, "H", "W")},
        {"b": "1..2", "h": "2..4", "w": "2..5", "H": "2..9", "W": "2..8"},
        [{"b": 1, "h": 2, "w": 5, "H": 9, "W": 3}, {"b": 2, "h": 4, "w": 3, "H": 8, "W": 8}],
    ),
    "resize_twice_size": Case(
        _resized(
            [node("Slice", "sx [2] [4]", "hw"), node("Mul", "hw [2]", "to_hw")],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        {"x": ("b", 3, "h", "w")},
        {"b": "1..2", "h": "2..4", "w": "2..5"},
        [{"b": 1, "h": 2, "w": 5}, {"b": 2, "h": 4, "w": 3}],
    ),
    "gemm": Case(
        [node("Gemm", "x w c")],
        {"x": ("b", 6)},
        {"b": "1..3"},
        [{"b": 1}, {"b": 3}],
        {"w": floats(6, 4), "c": floats(4)},
    ),
    "gemm_transA": Case(
        [node("Gemm", "x w", transA=1)],
        {"x": ("b", 6), "w": ("b", 4)},
        {"b": "1..3"},
        [{"b": 1}, {"b": 3}],
    ),
    "matmul_vec": Case(
        [node("MatMul", "x z")],
        {"x": ("b", "s"), "z": ("s",)},
        {"b": "1..3", "s": "1..5"},
        [{"b": 2, "s": 3}],
    ),
    "two_symbols_equal": Case(
        [node("Add", "x z")],
        {"x": ("b", "s"), "z": ("b", "t")},
        {"b": "1..3", "s": "1..5", "t": "1..4"},
        [{"b": 2, "s": 3, "t": 3}],
    ),
    "argmax_last": on_rows("ArgMax", axis=1, select_last_index=1),
    "hardmax": on_rows("Hardmax", axis=1),
    "split_heads3": on_shapes(
        node("Reshape", "x [0,0,3,2]", "q"),
        node("Split", "q", "a bb c", axis=2, num_outputs=3),
        node("Sub", "a bb"),
    ),
    "gather_dim": on_shapes(
        node("Reshape", "x [0,0,3,2]", "q"),
        node("Transpose", "q", "t", perm=[2, 0, 1, 3]),
        node("Gather", "t 1"),
    ),
    "mod_sizes": on_shapes(
        node("Gather", "shape 1", "s"),
        node("Mod", "s 2", "m"),
        node("Cast", "m", "f", to=1),
        node("Add", "x f"),
    ),
    "pad_to_multiple": on_shapes(
        node("Gather", "shape 1", "s"),
        node("Mod", "s 4", "m"),
        node("Sub", "4 m", "r"),
        node("Mod", "r 4", "p"),
        node("Unsqueeze", "p [0]", "pu"),
        node("Concat", "[0,0,0,0] pu [0]", "pads", axis=0),
        node("Pad", "x pads"),
    ),
}
