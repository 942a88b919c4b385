"""Moves along dynamic axes, as drawn models have found them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from tests.compiler.frontend.onnx_models import integers
from tests.compiler.frontend.sized_cases import Case, floats, node, on_rows, on_shapes, with_second
from tunefarm.compiler.types.tensor_type import Array

SIZES = [{"b": 3, "s": 7}, {"b": 1, "s": 3}, {"b": 2, "s": 5}]
BOUNDS = {"b": "1..3", "s": "3..7"}


def _from_end(operator: str, reduction: str) -> Case:
    """Updates of places that are counted from the true end of the sequence."""
    scatter = helper.make_node(operator, ["x", "places", "z"], ["y"], axis=1, reduction=reduction)
    return Case(
        [node("Sub", "i three", "places"), scatter],
        {"x": ("b", "s", 6), "i": ("b", 2, 6), "z": ("b", 2, 6)},
        BOUNDS,
        SIZES,
        {"three": integers(3)},
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
        {"none": integers(0), "far": integers(99), **constants},
    )


MOVE_CASES: dict[str, Case] = {
    "windows of planes that are filled up": Case(
        [
            node("Shape", "x", "size", start=1, end=2),
            node("Mod", "size four", "rest"),
            node("Sub", "four rest", "more"),
            node("Mod", "more four", "added"),
            node("Add", "size added", "whole"),
            node("Div", "whole four", "count"),
            node("Concat", "none none none none none added added none", "pads", axis=0),
            node("Pad", "x pads", "filled"),
            node("Concat", "all count four count four six", "apart", axis=0),
            node("Reshape", "filled apart", "windows"),
            node("ReduceMax", "windows two", "most"),
            node("Add", "windows most", "moved"),
            node("Concat", "all whole whole six", "together", axis=0),
            node("Reshape", "moved together"),
        ],
        {"x": ("b", "s", "s", 6)},
        BOUNDS,
        SIZES,
        {
            "four": integers(4),
            "six": integers(6),
            "all": integers(-1),
            "none": integers(0),
            "two": integers(2),
        },
    ),
    "slice up to what may be less than 0": _of_a_difference(node("Slice", "x none d none")),
    "slice from what may be less than 0": _of_a_difference(node("Slice", "x d far none")),
    "slice backwards from what may be less than 0": _of_a_difference(
        node("Slice", "x d before none back"), before=integers(-99), back=integers(-1)
    ),
    "remainder of what may be less than 0": _of_a_difference(
        node("Mod", "d three", "r", fmod=1),
        node("Mod", "d three", "m"),
        node("Concat", "r m d", axis=0),
        three=integers(3),
    ),
    "quotients of what may be less than 0": _of_a_difference(
        node("Div", "d three", "q"),
        node("Div", "d minus", "n"),
        node("Concat", "q n", "both", axis=0),
        node("Add", "both ten", "shape"),
        node("ConstantOfShape", "shape"),
        three=integers(3),
        minus=integers(-2),
        ten=integers(10),
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
        node("Sub", "none rest", "minus"),
        node("Add", "rest three", "more"),
        node("Sub", "more three", "same"),
        node("ConstantOfShape", "same", "zeros"),
        node("Concat", "none none minus none", "pads", axis=0),
        node("Pad", "x pads", "cut"),
        node("Shape", "zeros", "number"),
        node("Sub", "first number", "most"),
        node("Cast", "most", "real", to=1),
        node("Add", "cut real"),
        three=integers(3),
    ),
    "the diagonals of squares of any size": Case(
        [
            helper.make_node("Einsum", ["x"], ["d"], equation="bii->bi"),
            helper.make_node("Einsum", ["z"], ["t"], equation="ii->"),
            node("Add", "d t"),
        ],
        {"x": ("b", "s", "s"), "z": ("s", "t")},
        {**BOUNDS, "t": "1..9"},
        [{"b": 3, "s": 7, "t": 7}, {"b": 1, "s": 3, "t": 3}, {"b": 2, "s": 5, "t": 5}],
    ),
    "a sequence of two halves": on_shapes(
        [
            node("Gather", "shape one", "size"),
            node("Add", "size one", "more"),
            node("Div", "more two", "half"),
            node("Squeeze", "half", "each"),
            node("SplitToSequence", "x each", "parts", axis=1),
            node("SequenceAt", "parts last", "second"),
            node("SequenceAt", "parts first", "before"),
            node("Concat", "second before", axis=1),
        ],
        one=integers(1),
        two=integers(2),
        first=np.array(0),
        last=np.array(1),
    ),
    "a sequence of rows, one at a time": on_shapes(
        [
            node("SplitToSequence", "x one", "parts", axis=1),
            node("SequenceAt", "parts last", "end"),
            node("ConcatFromSequence", "parts", "all", axis=1),
            node("Add", "all end"),
        ],
        one=np.array(1),
        last=np.array(-1),
    ),
    "a sequence of parts whose sizes are computed": on_shapes(
        [
            node("Gather", "shape one", "size"),
            node("Sub", "size two", "rest"),
            node("Concat", "rest two", "sizes", axis=0),
            node("SplitToSequence", "x sizes", "parts", axis=1),
            node("SequenceAt", "parts last", "second"),
            node("SequenceAt", "parts first", "before"),
            node("Concat", "second before", axis=1),
        ],
        one=integers(1),
        two=integers(2),
        first=np.array(0),
        last=np.array(1),
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
        [node("Reshape", "x rows", "r"), node("Relu", "r", "p"), node("NonZero", "p")],
        rows=integers(-1, 6),
    ),
    "different elements of all": on_rows("Unique"),
    "padded to a multiple, with pads turned round": on_shapes(
        [
            node("Gather", "shape one", "n"),
            node("Mod", "n four", "rest"),
            node("Sub", "four rest", "left"),
            node("Mod", "left four", "p"),
            node("Concat", "none none none p none none", "pairs", axis=0),
            node("Reshape", "pairs two_each", "r"),
            node("Slice", "r last before first_axis last", "back"),
            node("Transpose", "back", "turned", perm=[1, 0]),
            node("Reshape", "turned flat", "pads"),
            node("Pad", "x pads"),
        ],
        one=integers(1),
        four=integers(4),
        none=integers(0),
        two_each=integers(-1, 2),
        last=integers(-1),
        before=integers(-(2**63) + 1),
        first_axis=integers(0),
        flat=integers(-1),
    ),
    "features that none are left of": on_shapes(
        [
            node("Slice", "x zero six last", "h"),
            node("Slice", "x six far last", "rest"),
            node("Split", "x parts", "all none", axis=2),
            node("Concat", "h rest none all", axis=2),
        ],
        zero=integers(0),
        six=integers(6),
        far=integers(2**62),
        last=integers(-1),
        parts=integers(6, 0),
    ),
    "rows repeated, with repeats of one axis by their place": on_shapes(
        [
            node("Gather", "shape one", "n"),
            node("Concat", "one n", "values", axis=0),
            node("OneHot", "at three values", "hot"),
            node("Reshape", "hot flat", "shape_of"),
            node("Unsqueeze", "first one", "f"),
            node("Tile", "f shape_of", "t"),
            node("OneHot", "at three both", "known"),
            node("Reshape", "known flat", "two"),
            node("Tile", "t two", "tt"),
            node("Slice", "tt zero n one", "u"),
            node("Add", "x u"),
        ],
        at=integers(1),
        one=integers(1),
        zero=integers(0),
        three=np.array(3),
        both=integers(1, 2),
        flat=integers(-1),
        first=floats(1, 6),
    ),
    "starts of all rows, and from the end": replace(
        on_shapes(
            [
                node("Gather", "shape zero", "rows"),
                node("Gather", "shape one", "columns"),
                node("Mul", "rows columns", "all"),
                node("Range", "zero all columns"),
                node("Sub", "zero columns", "back"),
                node("Range", "all zero back", "backwards"),
            ],
            zero=np.array(0),
            one=np.array(1),
        ),
        outputs=("y", "backwards"),
    ),
    "beams of each sentence apart": Case(
        [node("Reshape", "x apart", "a"), node("ReduceMax", "a first")],
        {"x": ("r", 4)},
        {"r": "3..12"},
        [{"r": 3}, {"r": 12}, {"r": 6}],
        {"apart": integers(-1, 3, 4), "first": integers(0)},
    ),
    "greatest of all rows": on_shapes(
        [node("Reshape", "x rows", "r"), node("TopK", "r two", "y at", axis=0)],
        rows=integers(-1, 6),
        two=integers(2),
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
        [node("Tile", "x twice", "t"), node("Max", "t z")],
        {"x": ("b", "s", 6), "z": ("b", "t", 6)},
        {**BOUNDS, "t": "6..14"},
        [{"b": 3, "s": 7, "t": 14}, {"b": 1, "s": 3, "t": 6}],
        {"twice": integers(1, 2, 1)},
    ),
}
