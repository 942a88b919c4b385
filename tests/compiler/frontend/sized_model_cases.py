"""Several operators in a row on data of dynamic shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.compiler.frontend.onnx_models import integers
from tests.compiler.frontend.sized_cases import Case, floats, on_rows, on_shapes
from tests.compiler.frontend.sized_cases import node as _node
from tests.compiler.frontend.sized_cases import with_second as _two
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


HALF = [
    _node("Gather", "shape one", "s"),
    _node("Div", "s two", "hs"),
    _node("Unsqueeze", "hs ax", "hu"),
]
"""Nodes from x's shape to half of its length, hu."""
HALF_CONSTANTS = {
    "one": np.array(1),
    "two": np.array(2),
    "ax": integers(0),
    "first": integers(0),
    "far": integers(2**62),
    "axis": integers(1),
}


def _resized(height_and_width: list[onnx.NodeProto], **how: str) -> list[onnx.NodeProto]:
    """x resized to what nodes make of its shape sx: to_hw."""
    return [
        _node("Shape", "x", "sx"),
        *height_and_width,
        _node("Slice", "sx zero two", "nc"),
        _node("Concat", "nc to_hw", "to", axis=0),
        helper.make_node("Resize", ["x", "", "", "to"], ["y"], **how),
    ]


RESIZED_CONSTANTS = {"zero": integers(0), "two": integers(2), "four": integers(4)}


MORE_CASES: dict[str, Case] = {
    "lstm": _recurrent("LSTM", 4),
    "gru": _recurrent("GRU", 3),
    "rnn": _recurrent("RNN", 1),
    "lstm_bi": _recurrent("LSTM", 4, 2, direction="bidirectional"),
    "gru_rev": _recurrent("GRU", 3, 1, direction="reverse"),
    "einsum": _two([_node("Einsum", "x z", equation="bsd,btd->bst")], ("b", "s", 6)),
    "einsum2": _two([_node("Einsum", "x z", equation="bsd,bsd->bd")], ("b", "s", 6)),
    "scatter_elements": Case(
        [_node("ScatterElements", "x i u", axis=1)],
        {"x": ("b", "s", 6), "i": ("b", "s", 6), "u": ("b", "s", 6)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        integers=("i",),
    ),
    "scatter_nd": Case(
        [_node("ScatterND", "x i u")],
        {"x": ("s", 6), "i": ("n", 1), "u": ("n", 6)},
        {"s": "3..7", "n": "1..3"},
        [{"s": 3, "n": 2}, {"s": 6, "n": 3}],
        integers=("i",),
    ),
    "gather_elements": Case(
        [_node("GatherElements", "x i", axis=1)],
        {"x": ("b", "s", 6), "i": ("b", "s", 6)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        integers=("i",),
    ),
    "gather_elements of fewer rows": Case(
        [_node("GatherElements", "x i", axis=1)],
        {"x": (4, 6), "i": ("n", 3)},
        {"n": "1..9"},
        [{"n": 2}, {"n": 4}, {"n": 1}],
        integers=("i",),
    ),
    "layer norm of a scale of any size": Case(
        [_node("LayerNormalization", "x z", axis=1)],
        {"x": ("b", 3, 4), "z": ("n", 4)},
        {"b": "1..3", "n": "1..5"},
        [{"b": 2, "n": 3}],
    ),
    "reduced along a computed axis": Case(
        [_node("ReduceMean", "x i", keepdims=0)],
        {"x": ("b", "s", 6), "i": (1,)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": size} for size in (3, 5, 4, 7)],
        integers=("i",),
    ),
    "reduced along a computed axis that stays": Case(
        [_node("ReduceL2", "x i")],
        {"x": ("b", "s", 6), "i": (1,)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": size} for size in (3, 5, 4, 7)],
        integers=("i",),
    ),
    "summed along a computed axis": Case(
        [_node("CumSum", "x i", reverse=1)],
        {"x": ("b", "s", 6), "i": ()},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": size} for size in (3, 5, 4, 7)],
        integers=("i",),
    ),
    "unsqueezed at a computed axis": Case(
        [_node("Unsqueeze", "x i")],
        {"x": ("b", "s"), "i": (1,)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": size} for size in (3, 5, 4, 7)],
        integers=("i",),
    ),
    "gather_ids": Case(
        [_node("Gather", "table i", "y")],
        {"i": ("b", "s")},
        {"b": "1..3", "s": "1..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        {"table": floats(9, 4)},
        integers=("i",),
    ),
    "gather_nd": Case(
        [_node("GatherND", "x i", "y", batch_dims=1)],
        {"x": ("b", "s", 6), "i": ("b", 1)},
        {"b": "1..3", "s": "3..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        integers=("i",),
    ),
    "one_hot": Case(
        [_node("OneHot", "i d v", "y")],
        {"i": ("b", "s")},
        {"b": "1..3", "s": "1..7"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 5}],
        {"d": np.array(4), "v": np.array([0, 1], np.float32)},
        integers=("i",),
    ),
    "one_hot of a computed depth": Case(
        [
            _node("Add", "i two", "d"),
            _node("ReduceMax", "d", keepdims=0),
            _node("OneHot", "i y v", "z"),
        ],
        {"i": ("s",)},
        {"s": "1..7"},
        [{"s": 3}, {"s": 5}],
        {"two": np.array(2), "v": np.array([0, 1], np.float32)},
        outputs=("z",),
        integers=("i",),
    ),
    "causal": on_shapes(
        [
            _node("Gather", "shape one", "s"),
            _node("Unsqueeze", "s zero", "su"),
            _node("Concat", "su su", "ss", axis=0),
            _node(
                "ConstantOfShape",
                "ss",
                "m",
                value=onnx.numpy_helper.from_array(np.array([-9.0], np.float32)),
            ),
            _node("Trilu", "m k", "tri", upper=1),
            _node("Transpose", "x", "xt", perm=[0, 2, 1]),
            _node("MatMul", "x xt", "sc"),
            _node("Add", "sc tri", "ma"),
            _node("Softmax", "ma", "w", axis=-1),
            _node("MatMul", "w x"),
        ],
        one=np.array(1),
        zero=integers(0),
        k=np.array(1),
    ),
    "mask_mean": Case(
        [
            _node("Unsqueeze", "m ax", "mu"),
            _node("Cast", "mu", "mf", to=1),
            _node("Mul", "x mf", "xm"),
            _node("ReduceSum", "xm ax1", "su", keepdims=0),
            _node("ReduceSum", "mf ax1", "cn", keepdims=0),
            _node("Clip", "cn lo", "cl"),
            _node("Div", "su cl"),
        ],
        {"x": ("b", "s", 6), "m": ("b", "s")},
        {"b": "1..3", "s": "1..7"},
        [{"b": 2, "s": 3}, {"b": 3, "s": 7}],
        {"ax": integers(2), "ax1": integers(1), "lo": np.array(1e-9, np.float32)},
        integers=("m",),
    ),
    "positions_cumsum": Case(
        [
            _node("CumSum", "m ax", "c"),
            _node("Sub", "c one", "p"),
            _node("Max", "p zero", "q"),
            _node("Gather", "t q", "y"),
        ],
        {"m": ("b", "s")},
        {"b": "1..3", "s": "1..4"},
        [{"b": 2, "s": 3}, {"b": 1, "s": 4}],
        {"ax": np.array(1), "one": np.array(1), "zero": np.array(0), "t": floats(9, 4)},
        integers=("m",),
    ),
    "windows": Case(
        [
            _node("Shape", "x", "sh"),
            _node("Gather", "sh i1", "h"),
            _node("Gather", "sh i0", "b"),
            _node("Div", "h four", "hw"),
            _node("Unsqueeze", "b ax", "bu"),
            _node("Unsqueeze", "hw ax", "hu"),
            _node("Concat", "bu hu c4 c6", "to", axis=0),
            _node("Reshape", "x to", "r"),
            _node("ReduceMean", "r ax2", "y", keepdims=0),
        ],
        {"x": ("b", "h", 6)},
        {"b": "1..2", "h": "4..12"},
        [{"b": 1, "h": 4}, {"b": 2, "h": 12}],
        {
            "i0": np.array(0),
            "i1": np.array(1),
            "four": np.array(4),
            "ax": integers(0),
            "c4": integers(4),
            "c6": integers(6),
            "ax2": integers(2),
        },
    ),
    "reshape_move": on_shapes([_node("Reshape", "x to")], to=integers(0, 6, -1)),
    "batch that another input names": Case(
        [
            _node("Shape", "z", "count", end=1),
            _node("Concat", "count rest", "to", axis=0),
            _node("Reshape", "x to"),
        ],
        {"x": ("b", "s", 6), "z": ("c",)},
        {"b": "1..3", "s": "2..7", "c": "1..4"},
        [{"b": 1, "s": 3, "c": 1}, {"b": 2, "s": 7, "c": 2}, {"b": 3, "s": 4, "c": 3}],
        {"rest": integers(-1)},
    ),
    "flatten_batch_rows": on_shapes(
        [
            _node("Reshape", "x to", "f"),
            _node("MatMul", "f w", "g"),
            _node("Gather", "shape i0", "b"),
            _node("Unsqueeze", "b ax", "bu"),
            _node("Concat", "bu m1 five", "to2", axis=0),
            _node("Reshape", "g to2"),
        ],
        to=integers(-1, 6),
        w=floats(6, 5),
        i0=np.array(0),
        ax=integers(0),
        m1=integers(-1),
        five=integers(5),
    ),
    "where_mask": Case(
        [
            _node("Cast", "m", "mb", to=9),
            _node("Unsqueeze", "mb ax", "mu"),
            _node("Where", "mu x low", "y"),
        ],
        {"x": ("b", "s", 6), "m": ("b", "s")},
        {"b": "1..3", "s": "1..7"},
        [{"b": 2, "s": 3}],
        {"ax": integers(2), "low": np.array(-1e9, np.float32)},
        integers=("m",),
    ),
    "size_float_sqrt": on_shapes(
        [
            _node("Gather", "shape one", "s"),
            _node("Cast", "s", "f", to=1),
            _node("Sqrt", "f", "q"),
            _node("Div", "x q"),
        ],
        one=np.array(1),
    ),
    "div_floor_shape": on_shapes([*HALF, _node("Slice", "x first hu axis", "y")], **HALF_CONSTANTS),
    "second_half": on_shapes([*HALF, _node("Slice", "x hu far axis", "y")], **HALF_CONSTANTS),
    "expand_like": _two(
        [_node("Shape", "x", "sx"), _node("Expand", "z sx", "e"), _node("Add", "x e")], ("b", 1, 6)
    ),
    "resize_sizes_of": Case(
        _resized(
            [_node("Shape", "z", "sz"), _node("Slice", "sz two four", "to_hw")],
            mode="linear",
            coordinate_transformation_mode="half_pixel",
        ),
        {"x": ("b", 3, "h", "w"), "z": ("b", 3, "H", "W")},
        {"b": "1..2", "h": "2..4", "w": "2..5", "H": "2..9", "W": "2..8"},
        [{"b": 1, "h": 2, "w": 5, "H": 9, "W": 3}, {"b": 2, "h": 4, "w": 3, "H": 8, "W": 8}],
        RESIZED_CONSTANTS,
    ),
    "resize_twice_size": Case(
        _resized(
            [_node("Slice", "sx two four", "hw"), _node("Mul", "hw two", "to_hw")],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        {"x": ("b", 3, "h", "w")},
        {"b": "1..2", "h": "2..4", "w": "2..5"},
        [{"b": 1, "h": 2, "w": 5}, {"b": 2, "h": 4, "w": 3}],
        RESIZED_CONSTANTS,
    ),
    "gemm": Case(
        [_node("Gemm", "x w c")],
        {"x": ("b", 6)},
        {"b": "1..3"},
        [{"b": 1}, {"b": 3}],
        {"w": floats(6, 4), "c": floats(4)},
    ),
    "gemm_transA": Case(
        [_node("Gemm", "x w", transA=1)],
        {"x": ("b", 6), "w": ("b", 4)},
        {"b": "1..3"},
        [{"b": 1}, {"b": 3}],
    ),
    "matmul_vec": Case(
        [_node("MatMul", "x z")],
        {"x": ("b", "s"), "z": ("s",)},
        {"b": "1..3", "s": "1..5"},
        [{"b": 2, "s": 3}],
    ),
    "two_symbols_equal": Case(
        [_node("Add", "x z")],
        {"x": ("b", "s"), "z": ("b", "t")},
        {"b": "1..3", "s": "1..5", "t": "1..4"},
        [{"b": 2, "s": 3, "t": 3}],
    ),
    "argmax_last": on_rows("ArgMax", axis=1, select_last_index=1),
    "hardmax": on_rows("Hardmax", axis=1),
    "split_heads3": on_shapes(
        [
            _node("Reshape", "x to", "q"),
            _node("Split", "q", "a bb c", axis=2, num_outputs=3),
            _node("Sub", "a bb"),
        ],
        to=integers(0, 0, 3, 2),
    ),
    "gather_dim": on_shapes(
        [
            _node("Reshape", "x to", "q"),
            _node("Transpose", "q", "t", perm=[2, 0, 1, 3]),
            _node("Gather", "t one"),
        ],
        to=integers(0, 0, 3, 2),
        one=np.array(1),
    ),
    "mod_sizes": on_shapes(
        [
            _node("Gather", "shape one", "s"),
            _node("Mod", "s two", "m"),
            _node("Cast", "m", "f", to=1),
            _node("Add", "x f"),
        ],
        one=np.array(1),
        two=np.array(2),
    ),
    "pad_to_multiple": on_shapes(
        [
            _node("Gather", "shape one", "s"),
            _node("Mod", "s four", "m"),
            _node("Sub", "four m", "r"),
            _node("Mod", "r four", "p"),
            _node("Unsqueeze", "p ax", "pu"),
            _node("Concat", "z4 pu z1", "pads", axis=0),
            _node("Pad", "x pads"),
        ],
        one=np.array(1),
        four=np.array(4),
        ax=integers(0),
        z4=integers(0, 0, 0, 0),
        z1=integers(0),
    ),
}
