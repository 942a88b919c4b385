"""Shapes that are computed as exporters do: by comparisons, in floats, by parts put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx

from tests.compiler.frontend.onnx_models import node
from tests.compiler.frontend.sized_cases import Case

FOURS = [{"h": 12, "w": 8}, {"h": 4, "w": 4}, {"h": 8, "w": 8}]
SIZES = [*FOURS, {"h": 13, "w": 1}]


def _on_image(*nodes: onnx.NodeProto, sizes: Sequence[dict[str, int]] = SIZES) -> Case:
    """Nodes on x [2, h, w, 3], its sizes h and w, and its shape."""
    first = [
        node("Shape", "x", "shape"),
        node("Shape", "x", "h", start=1, end=2),
        node("Shape", "x", "w", start=2, end=3),
    ]
    return Case([*first, *nodes], {"x": (2, "h", "w", 3)}, {"h": "1..13", "w": "1..9"}, list(sizes))


def _filled(*nodes: onnx.NodeProto) -> Case:
    """Ones of the shape n, with the image's first row added."""
    return _on_image(*nodes, node("Expand", "1.0 n"))


def _resized(*nodes: onnx.NodeProto) -> Case:
    """An image resized to the sizes n of its height and width."""
    return _on_image(
        node("Transpose", "x", "image", perm=[0, 3, 1, 2]),
        node("Concat", "h w", "sizes", axis=0),
        *nodes,
        node("Concat", "[2,3] n", "wanted", axis=0),
        node("Resize", "image _ _ wanted", mode="linear"),
    )


_FITTED = (
    node("Cast", "sizes", "length", to=onnx.TensorProto.FLOAT),
    node("ReduceMin", "length", "least", keepdims=0),
    node("ReduceMax", "length", "most", keepdims=0),
    node("Reciprocal", "least", "by_least"),
    node("Mul", "by_least 8.0", "up"),
    node("Div", "14.0 most", "down"),
    node("Min", "up down", "scale"),
    node("Mul", "length scale", "scaled"),
    node("Floor", "scaled", "floored"),
    node("Cast", "floored", "n", to=onnx.TensorProto.INT64),
)
"""Nodes that make the sizes that detectors resize an image to: 8 the shorter, 14 the longer."""

_UP_TO_FOURS = (
    node("Cast", "n", "floats", to=onnx.TensorProto.FLOAT),
    node("Div", "floats 4.0", "steps"),
    node("Ceil", "steps", "whole"),
    node("Mul", "whole 4.0", "filled"),
    node("Cast", "filled", "places", to=onnx.TensorProto.INT64),
    node("Sub", "places n", "more"),
    node("Concat", "[0,0,0,0,0,0] more", "pads", axis=0),
)
"""Nodes that make the pads that fill an image up to fours."""

_WINDOWS = (
    node("Div", "height [4]", "down"),
    node("Div", "width [4]", "across"),
    node("Concat", "[2] down [4] across [4] [3]", "split", axis=0),
    node("Reshape", "padded split", "apart"),
    node("Transpose", "apart", "windows", perm=[0, 1, 3, 2, 4, 5]),
    node("Reshape", "windows [-1,4,4,3]", "one_by_one"),
    node("Shape", "one_by_one", "number", start=0, end=1),
    node("Mul", "down across", "each"),
    node("Div", "number each", "batch"),
    node("Concat", "batch down across [4] [4] [-1]", "join", axis=0),
    node("Reshape", "one_by_one join", "joined"),
    node("Transpose", "joined", "back", perm=[0, 1, 3, 2, 4, 5]),
    node("Concat", "batch height width [-1]", "whole", axis=0),
    node("Reshape", "back whole"),
)


def _padded() -> Case:
    """An image resized as detectors do, and filled up to rows and columns of four."""
    resized = _resized(*_FITTED)
    resized.nodes[-1].output[0] = "resized"
    return replace(resized, nodes=[*resized.nodes, *_UP_TO_FOURS, node("Pad", "resized pads")])


SHAPE_CASES: dict[str, Case] = {
    "windows of an image and the image again": _on_image(
        node("Identity", "x", "padded"),
        node("Identity", "h", "height"),
        node("Identity", "w", "width"),
        *_WINDOWS,
        sizes=FOURS,
    ),
    "windows of an image that is padded to whole ones": _on_image(
        node("Neg", "h", "minus"),
        node("Mod", "minus [4]", "below"),
        node("Mod", "w [4]", "over"),
        node("Sub", "[4] over", "left"),
        node("Mod", "left [4]", "beside"),
        node("Concat", "[0] [0] [0] [0] [0] below beside [0]", "pads", axis=0),
        node("Pad", "x pads", "padded"),
        node("Shape", "padded", "height", start=1, end=2),
        node("Shape", "padded", "width", start=2, end=3),
        *_WINDOWS,
        sizes=FOURS,
    ),
    "a size made even": _filled(
        node("Mod", "h [2]", "odd"),
        node("Equal", "odd [1]", "is_odd"),
        node("Cast", "is_odd", "more", to=7),
        node("Add", "h more", "n"),
    ),
    "the smaller size, as a choice": _filled(
        node("Less", "h w", "is_less"), node("Where", "is_less h w", "n")
    ),
    "a size or another number, as a choice": _filled(
        node("GreaterOrEqual", "h w", "is_more"),
        node("Not", "is_more", "is_less"),
        node("Greater", "h [4]", "is_long"),
        node("And", "is_less is_long", "both"),
        node("Or", "both is_more", "any"),
        node("Xor", "any is_long", "one_of"),
        node("Where", "one_of h [4]", "n"),
    ),
    "a size between bounds": _filled(node("Clip", "h 3 6", "n")),
    "a size squared": _filled(node("Pow", "w [2]", "n")),
    "a shape with another channel": _filled(node("ScatterND", "shape [[3]] [1]", "n")),
    "half of a size in floats": _filled(
        node("Cast", "h", "real", to=1),
        node("Mul", "real 0.5", "less"),
        node("Ceil", "less", "up"),
        node("Cast", "up", "n", to=7),
    ),
    "a size in floats, divided and rounded": _filled(
        node("CastLike", "h 2.6", "real"),
        node("Div", "real 2.6", "part"),
        node("Round", "part", "near"),
        node("Max", "near 2.6", "least"),
        node("Cast", "least", "n", to=7),
    ),
    "an image resized by a factor in floats": _resized(
        node("Cast", "sizes", "real", to=1),
        node("Mul", "real 1.5", "larger"),
        node("Floor", "larger", "down"),
        node("Cast", "down", "n", to=7),
    ),
    "an image resized by a factor that rounds": _resized(
        node("Cast", "sizes", "real", to=1),
        node("Mul", "real 2.6", "larger"),
        node("Cast", "larger", "n", to=7),
    ),
    "an image resized to fit a square": _resized(*_FITTED),
    "an image resized to fit, and filled up": _padded(),
    "an image resized by the ratio of sizes": _on_image(
        node("Transpose", "x", "image", perm=[0, 3, 1, 2]),
        node("Concat", "h w", "sizes", axis=0),
        node("Cast", "sizes", "real", to=1),
        node("Div", "[6.0,10] real", "ratios"),
        node("Concat", "[1.0,1] ratios", "scales", axis=0),
        node(
            "Resize", "image _ scales", mode="linear", coordinate_transformation_mode="asymmetric"
        ),
    ),
    "positions of a size in floats": _on_image(
        node("Squeeze", "h", "count"),
        node("Cast", "count", "real", to=1),
        node("Range", "0.5 real 1.0"),
    ),
    "a triangle that begins where sizes differ": _on_image(
        node("Transpose", "x", "image", perm=[0, 3, 1, 2]),
        node("Sub", "w h", "difference"),
        node("Squeeze", "difference", "k"),
        node("Trilu", "image k", upper=1),
    ),
}
