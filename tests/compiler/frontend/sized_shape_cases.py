"""Shapes that are computed as exporters do: by comparisons, in floats, by parts put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from tests.compiler.frontend.onnx_models import integers
from tests.compiler.frontend.sized_cases import Case, node
from tunefarm.compiler.types.tensor_type import Array

SIZES = [{"h": 12, "w": 8}, {"h": 4, "w": 4}, {"h": 8, "w": 8}]


def _number(value: float) -> Array:
    return np.array(value, np.float32)


def _on_image(*nodes: onnx.NodeProto, **constants: Array) -> Case:
    """Nodes on x [2, h, w, 3], its sizes h and w, and its shape."""
    first = [
        node("Shape", "x", "shape"),
        node("Shape", "x", "h", start=1, end=2),
        node("Shape", "x", "w", start=2, end=3),
    ]
    common = {"none": integers(0), "one": integers(1), "two": integers(2), "four": integers(4)}
    return Case(
        [*first, *nodes],
        {"x": (2, "h", "w", 3)},
        {"h": "1..13", "w": "1..9"},
        [*SIZES, {"h": 13, "w": 1}] if "rows" not in constants else SIZES,
        {**common, **constants},
    )


def _filled(*nodes: onnx.NodeProto, **constants: Array) -> Case:
    """Ones of the shape n, with the image's first row added."""
    return _on_image(*nodes, node("Expand", "number n"), number=_number(1), **constants)


def _resized(*nodes: onnx.NodeProto, **constants: Array) -> Case:
    """An image resized to the sizes n of its height and width."""
    return _on_image(
        node("Transpose", "x", "image", perm=[0, 3, 1, 2]),
        node("Concat", "h w", "sizes", axis=0),
        *nodes,
        node("Concat", "begin n", "wanted", axis=0),
        helper.make_node("Resize", ["image", "", "", "wanted"], ["y"], mode="linear"),
        begin=integers(2, 3),
        **constants,
    )


_FITTED = (
    node("Cast", "sizes", "length", to=onnx.TensorProto.FLOAT),
    node("ReduceMin", "length", "least", keepdims=0),
    node("ReduceMax", "length", "most", keepdims=0),
    node("Reciprocal", "least", "by_least"),
    node("Mul", "by_least eight", "up"),
    node("Div", "many most", "down"),
    node("Min", "up down", "scale"),
    node("Mul", "length scale", "scaled"),
    node("Floor", "scaled", "floored"),
    node("Cast", "floored", "n", to=onnx.TensorProto.INT64),
)
"""Nodes that make the sizes that detectors resize an image to: 8 the shorter, 14 the longer."""

_UP_TO_FOURS = (
    node("Cast", "n", "floats", to=onnx.TensorProto.FLOAT),
    node("Div", "floats four_", "steps"),
    node("Ceil", "steps", "whole"),
    node("Mul", "whole four_", "filled"),
    node("Cast", "filled", "places", to=onnx.TensorProto.INT64),
    node("Sub", "places n", "more"),
    node("Concat", "zeros more", "pads", axis=0),
)
"""Nodes that make the pads that fill an image up to fours."""

_WINDOWS = (
    node("Div", "height four", "down"),
    node("Div", "width four", "across"),
    node("Concat", "two down four across four three", "split", axis=0),
    node("Reshape", "padded split", "apart"),
    node("Transpose", "apart", "windows", perm=[0, 1, 3, 2, 4, 5]),
    node("Reshape", "windows rows", "one_by_one"),
    node("Shape", "one_by_one", "number", start=0, end=1),
    node("Mul", "down across", "each"),
    node("Div", "number each", "batch"),
    node("Concat", "batch down across four four rest", "join", axis=0),
    node("Reshape", "one_by_one join", "joined"),
    node("Transpose", "joined", "back", perm=[0, 1, 3, 2, 4, 5]),
    node("Concat", "batch height width rest", "whole", axis=0),
    node("Reshape", "back whole"),
)
_ROWS = {"rows": integers(-1, 4, 4, 3), "rest": integers(-1), "three": integers(3)}


def _padded(**constants: Array) -> Case:
    """An image resized as detectors do, and filled up to rows and columns of four."""
    resized = _resized(*_FITTED, **constants)
    resized.nodes[-1].output[0] = "resized"
    numbers = {"four_": _number(4), "zeros": integers(0, 0, 0, 0, 0, 0)}
    return replace(
        resized,
        nodes=[*resized.nodes, *_UP_TO_FOURS, node("Pad", "resized pads")],
        constants={**resized.constants, **numbers},
    )


SHAPE_CASES: dict[str, Case] = {
    "windows of an image and the image again": _on_image(
        node("Identity", "x", "padded"),
        node("Identity", "h", "height"),
        node("Identity", "w", "width"),
        *_WINDOWS,
        **_ROWS,
    ),
    "windows of an image that is padded to whole ones": _on_image(
        node("Neg", "h", "minus"),
        node("Mod", "minus four", "below"),
        node("Mod", "w four", "over"),
        node("Sub", "four over", "left"),
        node("Mod", "left four", "beside"),
        node("Concat", "none none none none none below beside none", "pads", axis=0),
        node("Pad", "x pads", "padded"),
        node("Shape", "padded", "height", start=1, end=2),
        node("Shape", "padded", "width", start=2, end=3),
        *_WINDOWS,
        **_ROWS,
    ),
    "a size made even": _filled(
        node("Mod", "h two", "odd"),
        node("Equal", "odd one", "is_odd"),
        node("Cast", "is_odd", "more", to=7),
        node("Add", "h more", "n"),
    ),
    "the smaller size, as a choice": _filled(
        node("Less", "h w", "is_less"), node("Where", "is_less h w", "n")
    ),
    "a size or another number, as a choice": _filled(
        node("GreaterOrEqual", "h w", "is_more"),
        node("Not", "is_more", "is_less"),
        node("Greater", "h four", "is_long"),
        node("And", "is_less is_long", "both"),
        node("Or", "both is_more", "any"),
        node("Xor", "any is_long", "one_of"),
        node("Where", "one_of h four", "n"),
    ),
    "a size between bounds": _filled(
        node("Clip", "h low high", "n"), low=np.array(3), high=np.array(6)
    ),
    "a size squared": _filled(node("Pow", "w two", "n")),
    "a shape with another channel": _filled(
        helper.make_node("ScatterND", ["shape", "place", "one"], ["n"]), place=integers(3)[None]
    ),
    "half of a size in floats": _filled(
        node("Cast", "h", "real", to=1),
        node("Mul", "real half", "less"),
        node("Ceil", "less", "up"),
        node("Cast", "up", "n", to=7),
        half=_number(0.5),
    ),
    "a size in floats, divided and rounded": _filled(
        node("CastLike", "h root", "real"),
        node("Div", "real root", "part"),
        node("Round", "part", "near"),
        node("Max", "near root", "least"),
        node("Cast", "least", "n", to=7),
        root=_number(2.6),
    ),
    "an image resized by a factor in floats": _resized(
        node("Cast", "sizes", "real", to=1),
        node("Mul", "real factor", "larger"),
        node("Floor", "larger", "down"),
        node("Cast", "down", "n", to=7),
        factor=_number(1.5),
    ),
    "an image resized by a factor that rounds": _resized(
        node("Cast", "sizes", "real", to=1),
        node("Mul", "real factor", "larger"),
        node("Cast", "larger", "n", to=7),
        factor=_number(2.6),
    ),
    "an image resized to fit a square": _resized(*_FITTED, eight=_number(8), many=_number(14)),
    "an image resized to fit, and filled up": _padded(eight=_number(8), many=_number(14)),
    "an image resized by the ratio of sizes": _on_image(
        node("Transpose", "x", "image", perm=[0, 3, 1, 2]),
        node("Concat", "h w", "sizes", axis=0),
        node("Cast", "sizes", "real", to=1),
        node("Div", "target real", "ratios"),
        node("Concat", "ones ratios", "scales", axis=0),
        helper.make_node(
            "Resize",
            ["image", "", "scales"],
            ["y"],
            mode="linear",
            coordinate_transformation_mode="asymmetric",
        ),
        target=np.array([6, 10], np.float32),
        ones=np.ones(2, np.float32),
    ),
    "positions of a size in floats": _on_image(
        node("Squeeze", "h", "count"),
        node("Cast", "count", "real", to=1),
        node("Range", "half real step"),
        half=_number(0.5),
        step=_number(1),
    ),
    "a triangle that begins where sizes differ": _on_image(
        node("Transpose", "x", "image", perm=[0, 3, 1, 2]),
        node("Sub", "w h", "difference"),
        node("Squeeze", "difference", "k"),
        node("Trilu", "image k", upper=1),
    ),
}
