"""Moves along dynamic axes, as drawn models have found them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx

from tests.compiler.frontend.onnx_models import integers, node
from tests.compiler.frontend.sized_cases import Case, floats, on_rows, on_shapes, with_second
from tunefarm.compiler.types.tensor_type import Array

SIZES = [{"b": 3, "s": 7}, {"b": 1, "s": 3}, {"b": 2, "s": 5}]
BOUNDS = {"b": "1..3", "s": "3..7"}


def _from_end(operator: str, reduction: str) -> Case:
    """Updates of places that are counted from the true end of the sequence."""
    scatter = node(operator, "x places z", axis=1, reduction=reduction)
    return Case(
        [node("Sub", "i [3]", "places"), scatter],
        {"x": ("b", "s", 6), "i": ("b", 2, 6), "z": ("b", 2, 6)},
        BOUNDS,
        SIZES,
        integers=("i",),
    )


def _of_a_difference(*nodes: onnx.NodeProto, **constants: Array) -> Case:
    """Nodes on x [s, 6] and d = s - b, which may be less than 0."""
    return Case(
        [
            node("Shape", "x", "long", start=0, end=1),
            node("Shape", "z", "wide", start=0, end=1),
            node("Sub", "long wide", "d"),
            *nodes,
        ],
        {"x": ("s", 6), "z": ("b",)},
        {"s": "1..7", "b": "1..7"},
        [{"s": 7, "b": 2}, {"s": 5, "b": 7}, {"s": 2, "b": 7}, {"s": 3, "b": 3}, {"s": 6, "b": 7}],
        constants,
    )


_FLAT = [
    node("Shape", "x", "ends", start=0, end=2),
    node("Concat", "ends [-1]", "flat", axis=0),
    node("Reshape", "x flat", "planes"),
    node("Transpose", "planes", "pixels", perm=[0, 2, 1]),
]


def _of_pixels(*nodes: onnx.NodeProto, second: Sequence[str | int] = ()) -> Case:
    """What nodes make of `planes` [b, 6, h * w] and `pixels` [b, h * w, 6] of x, and of z."""
    inputs: dict[str, tuple[str | int, ...]] = {"x": ("b", 6, "h", "w")}
    return Case(
        [*_FLAT, *nodes],
        inputs | ({"z": tuple(second)} if second else {}),
        {"b": "1..2", "h": "1..5", "w": "1..9"},
        [{"b": 1, "h": 5, "w": 3}, {"b": 2, "h": 4, "w": 9}, {"b": 2, "h": 1, "w": 1}],
        {"m": floats(6, 6)},
    )


def _attention(keys: str, values: str, queries: str = "q") -> list[onnx.NodeProto]:
    return [
        node("MatMul", f"{queries} {keys}", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", f"weights {values}"),
    ]


MOVE_CASES: dict[str, Case] = {
    "attention of pixels": _of_pixels(
        node("MatMul", "pixels m", "k"),
        node("Transpose", "k", "turned", perm=[0, 2, 1]),
        *_attention("turned", "pixels", "k"),
    ),
    "attention of pixels in planes": _of_pixels(*_attention("planes", "pixels", "pixels")),
    "attention of few queries": _of_pixels(
        node("MatMul", "pixels m", "k"),
        node("Transpose", "k", "turned", perm=[0, 2, 1]),
        *_attention("turned", "k", "z"),
        second=("b", 5, 6),
    ),
    "channels mixed by what pixels make of them": _of_pixels(
        node("MatMul", "planes pixels", "mixes"),
        node("MatMul", "mixes planes", "mixed"),
        node("Shape", "x", "size"),
        node("Reshape", "mixed size"),
    ),
    "windows of planes that are filled up": Case(
        [
            node("Shape", "x", "size", start=1, end=2),
            node("Mod", "size [4]", "rest"),
            node("Sub", "[4] rest", "more"),
            node("Mod", "more [4]", "added"),
            node("Add", "size added", "whole"),
            node("Div", "whole [4]", "count"),
            node("Concat", "[0] [0] [0] [0] [0] added added [0]", "pads", axis=0),
            node("Pad", "x pads", "filled"),
            node("Concat", "[-1] count [4] count [4] [6]", "apart", axis=0),
            node("Reshape", "filled apart", "windows"),
            node("ReduceMax", "windows [2]", "most"),
            node("Add", "windows most", "moved"),
            node("Concat", "[-1] whole whole [6]", "together", axis=0),
            node("Reshape", "moved together"),
        ],
        {"x": ("b", "s", "s", 6)},
        BOUNDS,
        SIZES,
    ),
    "slice up to what may be less than 0": _of_a_difference(node("Slice", "x [0] d [0]")),
    "slice from what may be less than 0": _of_a_difference(node("Slice", "x d [99] [0]")),
    "slice backwards from what may be less than 0": _of_a_difference(
        node("Slice", "x d [-99] [0] [-1]")
    ),
    "remainder of what may be less than 0": _of_a_difference(
        node("Mod", "d [3]", "r", fmod=1),
        node("Mod", "d [3]", "m"),
        node("Concat", "r m d", axis=0),
    ),
    "quotients of what may be less than 0": _of_a_difference(
        node("Div", "d [3]", "q"),
        node("Div", "d [-2]", "n"),
        node("Concat", "q n", "both", axis=0),
        node("Add", "both [10]", "shape"),
        node("ConstantOfShape", "shape"),
    ),
    "split where bounds alone do not say that there is anything": _of_a_difference(
        node("Min", "long wide", "first"),
        node("Sub", "long first", "rest"),
        node("Concat", "rest first", "sizes", axis=0),
        node("Split", "x sizes", "one two", axis=0),
        node("Concat", "two one", axis=0),
    ),
    "filled and padded where bounds alone do not say that there is anything": _of_a_difference(
        node("Min", "long wide", "first"),
        node("Sub", "long first", "rest"),
        node("Sub", "[0] rest", "minus"),
        node("Add", "rest [3]", "more"),
        node("Sub", "more [3]", "same"),
        node("ConstantOfShape", "same", "zeros"),
        node("Concat", "[0] [0] minus [0]", "pads", axis=0),
        node("Pad", "x pads", "cut"),
        node("Shape", "zeros", "number"),
        node("Sub", "first number", "most"),
        node("Cast", "most", "real", to=1),
        node("Add", "cut real"),
    ),
    "the diagonals of squares of any size": Case(
        [
            node("Einsum", "x", "d", equation="bii->bi"),
            node("Einsum", "z", "t", equation="ii->"),
            node("Add", "d t"),
        ],
        {"x": ("b", "s", "s"), "z": ("s", "t")},
        {**BOUNDS, "t": "1..9"},
        [{"b": 3, "s": 7, "t": 7}, {"b": 1, "s": 3, "t": 3}, {"b": 2, "s": 5, "t": 5}],
    ),
    "a sequence of two halves": on_shapes(
        node("Gather", "shape [1]", "size"),
        node("Add", "size [1]", "more"),
        node("Div", "more [2]", "half"),
        node("Squeeze", "half", "each"),
        node("SplitToSequence", "x each", "parts", axis=1),
        node("SequenceAt", "parts 1", "second"),
        node("SequenceAt", "parts 0", "before"),
        node("Concat", "second before", axis=1),
    ),
    "a sequence of rows, one at a time": on_shapes(
        node("SplitToSequence", "x 1", "parts", axis=1),
        node("SequenceAt", "parts -1", "end"),
        node("ConcatFromSequence", "parts", "all", axis=1),
        node("Add", "all end"),
    ),
    "a sequence of parts whose sizes are computed": on_shapes(
        node("Gather", "shape [1]", "size"),
        node("Sub", "size [2]", "rest"),
        node("Concat", "rest [2]", "sizes", axis=0),
        node("SplitToSequence", "x sizes", "parts", axis=1),
        node("SequenceAt", "parts 1", "second"),
        node("SequenceAt", "parts 0", "before"),
        node("Concat", "second before", axis=1),
    ),
    "sequences backwards": Case(
        [node("ReverseSequence", "x n", time_axis=1, batch_axis=0)],
        {"x": ("b", "s", 6), "n": ("b",)},
        BOUNDS,
        SIZES,
        integers=("n",),
    ),
    "places added to from the end": _from_end("ScatterElements", "add"),
    "places replaced from the end": Case(
        [node("ScatterElements", "x places z", axis=0)],
        {"x": ("s", 6), "z": (2, 6)},
        {"s": "3..7"},
        [{"s": 7}, {"s": 3}, {"s": 5}],
        {"places": integers(*[-1] * 6, *[0] * 6).reshape(2, 6)},
    ),
    "rows replaced from the end": Case(
        [node("ScatterND", "x places z")],
        {"x": ("s", 6), "z": (2, 6)},
        {"s": "3..7"},
        [{"s": 7}, {"s": 3}, {"s": 5}],
        {"places": integers(-1, 1).reshape(2, 1)},
    ),
    "elements replaced from the end of both axes": Case(
        [node("ScatterND", "x places z")],
        {"x": ("b", "s", 6), "z": (2, 6)},
        {"b": "2..3", "s": "3..7"},
        [{"b": 3, "s": 7}, {"b": 2, "s": 3}, {"b": 3, "s": 4}],
        {"places": integers(-1, -3, 0, -1).reshape(2, 2)},
    ),
    "blocks of an image of any size": Case(
        [node("SpaceToDepth", "x", blocksize=2)],
        {"x": (1, 3, "h", "w")},
        {"h": "2..7", "w": "2..8"},
        [{"h": 6, "w": 8}, {"h": 2, "w": 2}, {"h": 4, "w": 6}],
    ),
    "elements found in rows side by side": on_shapes(
        node("Reshape", "x [-1,6]", "r"), node("Relu", "r", "p"), node("NonZero", "p")
    ),
    "different elements of all": on_rows("Unique"),
    "padded to a multiple, with pads turned round": on_shapes(
        node("Gather", "shape [1]", "n"),
        node("Mod", "n [4]", "rest"),
        node("Sub", "[4] rest", "left"),
        node("Mod", "left [4]", "p"),
        node("Concat", "[0] [0] [0] p [0] [0]", "pairs", axis=0),
        node("Reshape", "pairs [-1,2]", "r"),
        node("Slice", "r [-1] before [0] [-1]", "back"),
        node("Transpose", "back", "turned", perm=[1, 0]),
        node("Reshape", "turned [-1]", "pads"),
        node("Pad", "x pads"),
        before=integers(-(2**63) + 1),
    ),
    "features that none are left of": on_shapes(
        node("Slice", "x [0] [6] [-1]", "h"),
        node("Slice", "x [6] far [-1]", "rest"),
        node("Split", "x [6,0]", "all none", axis=2),
        node("Concat", "h rest none all", axis=2),
        far=integers(2**62),
    ),
    "rows repeated, with repeats of one axis by their place": on_shapes(
        node("Gather", "shape [1]", "n"),
        node("Concat", "[1] n", "values", axis=0),
        node("OneHot", "[1] 3 values", "hot"),
        node("Reshape", "hot [-1]", "shape_of"),
        node("Unsqueeze", "first [1]", "f"),
        node("Tile", "f shape_of", "t"),
        node("OneHot", "[1] 3 [1,2]", "known"),
        node("Reshape", "known [-1]", "two"),
        node("Tile", "t two", "tt"),
        node("Slice", "tt [0] n [1]", "u"),
        node("Add", "x u"),
        first=floats(1, 6),
    ),
    "starts of all rows, and from the end": replace(
        on_shapes(
            node("Gather", "shape 0", "rows"),
            node("Gather", "shape 1", "columns"),
            node("Mul", "rows columns", "all"),
            node("Range", "0 all columns"),
            node("Sub", "0 columns", "back"),
            node("Range", "all 0 back", "backwards"),
        ),
        outputs=("y", "backwards"),
    ),
    "beams of each sentence apart": Case(
        [node("Reshape", "x [-1,3,4]", "a"), node("ReduceMax", "a [0]")],
        {"x": ("r", 4)},
        {"r": "3..12"},
        [{"r": 3}, {"r": 12}, {"r": 6}],
    ),
    "blocks of an image's rows and columns as channels": Case(
        [
            node("Unsqueeze", "x [3]", "one"),
            node("Reshape", "one [0,0,-1,2,0]", "rows"),
            node("Reshape", "rows [0,0,0,0,-1,3]", "blocks"),
            node("Transpose", "blocks", "turned", perm=[0, 1, 3, 5, 2, 4]),
            node("Reshape", "turned [0,-1,1,1,0,0]", "channels"),
            node("Squeeze", "channels [2,3]"),
        ],
        {"x": (1, 4, "h", "w")},
        {"h": "2..12", "w": "3..15"},
        [{"h": 2, "w": 3}, {"h": 12, "w": 15}, {"h": 6, "w": 9}],
    ),
    "blocks of images of a left number, by divided heights and widths": Case(
        [
            node("Shape", "x", "high", start=2, end=3),
            node("Shape", "x", "wide", start=3, end=4),
            node("Div", "high [2]", "upper"),
            node("Div", "wide [3]", "left"),
            node("Concat", "[-1] [4] upper [2] left [3]", "sizes", axis=0),
            node("Reshape", "x sizes", "blocks"),
            node("Transpose", "blocks", perm=[0, 1, 3, 5, 2, 4]),
        ],
        {"x": ("b", 4, "h", "w")},
        {"b": "1..3", "h": "2..8", "w": "3..9"},
        [{"b": 1, "h": 2, "w": 3}, {"b": 3, "h": 8, "w": 6}, {"b": 2, "h": 4, "w": 9}],
    ),
    "as many rows of each block as are left": Case(
        [
            node("Shape", "x", "batch", start=0, end=1),
            node("Shape", "x", "rows", start=1, end=2),
            node("Div", "rows [4]", "fourth"),
            node("Concat", "batch fourth [-1] [6]", "sizes", axis=0),
            node("Reshape", "x sizes"),
        ],
        {"x": ("b", "s", 6)},
        {"b": "1..3", "s": "4..16"},
        [{"b": 1, "s": 4}, {"b": 3, "s": 16}, {"b": 2, "s": 8}],
    ),
    "greatest of all rows": on_shapes(
        node("Reshape", "x [-1,6]", "r"), node("TopK", "r [2]", "y at", axis=0)
    ),
    "products over channels that need not be there": with_second(
        [node("Conv", "x z", kernel_shape=[3], pads=[1, 1])], (5, "s", 3)
    ),
    "products turned round over channels": with_second(
        [node("ConvTranspose", "x z", strides=[2])], ("s", 4, 3)
    ),
    "channels of any number by their statistics": Case(
        [node("Abs", "r", "v"), node("BatchNormalization", "x g g g v", epsilon=0.1)],
        {"x": ("b", "s", 6), "g": ("s",), "r": ("s",)},
        BOUNDS,
        SIZES,
    ),
    "ones on the diagonal of any size": Case(
        [node("EyeLike", "x", k=1)], {"x": ("b", "s")}, BOUNDS, SIZES
    ),
    "twice the sequence beside as much of another": Case(
        [node("Tile", "x [1,2,1]", "t"), node("Max", "t z")],
        {"x": ("b", "s", 6), "z": ("b", "t", 6)},
        {**BOUNDS, "t": "6..14"},
        [{"b": 3, "s": 7, "t": 14}, {"b": 1, "s": 3, "t": 6}],
    ),
}
