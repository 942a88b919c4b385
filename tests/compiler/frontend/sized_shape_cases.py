"""Shapes that are computed as exporters do: by comparisons, in floats, by parts put together."""

from __future__ import annotations

from tests.compiler.frontend.sized_cases import Case, case

FOURS = "h 1..13: 12 4 8, w 1..9: 8 4 8"


def _on_image(nodes: str, sizes: str = "h 1..13: 12 4 8 13, w 1..9: 8 4 8 1") -> Case:
    """Nodes on x [2, h, w, 3], its sizes h and w, and its shape."""
    first = "shape = Shape x; h = Shape x start=1 end=2; w = Shape x start=2 end=3"
    return case("x[2,h,w,3]", f"{first}; {nodes}", sizes)


def _filled(nodes: str) -> Case:
    """Ones of the shape n, with the image's first row added."""
    return _on_image(f"{nodes}; Expand 1.0 n")


def _resized(nodes: str, end: str = "Resize image _ _ wanted mode=linear") -> Case:
    """An image resized to the sizes n of its height and width."""
    return _on_image(
        f"image = Transpose x perm=[0,3,1,2]; sizes = Concat h w axis=0; {nodes}; "
        f"wanted = Concat [2,3] n axis=0; {end}"
    )


_FITTED = (
    "length = Cast sizes to=1; least = ReduceMin length keepdims=0; "
    "most = ReduceMax length keepdims=0; by_least = Reciprocal least; up = Mul by_least 8.0; "
    "down = Div 14.0 most; scale = Min up down; scaled = Mul length scale; "
    "floored = Floor scaled; n = Cast floored to=7"
)
"""Nodes that make the sizes that detectors resize an image to: 8 the shorter, 14 the longer."""

_UP_TO_FOURS = (
    "floats = Cast n to=1; steps = Div floats 4.0; whole = Ceil steps; filled = Mul whole 4.0; "
    "places = Cast filled to=7; more = Sub places n; pads = Concat [0,0,0,0,0,0] more axis=0"
)
"""Nodes that make the pads that fill an image up to fours."""

_WINDOWS = (
    "down = Div height [4]; across = Div width [4]; "
    "split = Concat [2] down [4] across [4] [3] axis=0; apart = Reshape padded split; "
    "windows = Transpose apart perm=[0,1,3,2,4,5]; one_by_one = Reshape windows [-1,4,4,3]; "
    "number = Shape one_by_one start=0 end=1; each = Mul down across; batch = Div number each; "
    "join = Concat batch down across [4] [4] [-1] axis=0; joined = Reshape one_by_one join; "
    "back = Transpose joined perm=[0,1,3,2,4,5]; whole = Concat batch height width [-1] axis=0; "
    "Reshape back whole"
)

SHAPE_CASES: dict[str, Case] = {
    "windows of an image and the image again": _on_image(
        f"padded = Identity x; height = Identity h; width = Identity w; {_WINDOWS}", sizes=FOURS
    ),
    "windows of an image that is padded to whole ones": _on_image(
        "minus = Neg h; below = Mod minus [4]; over = Mod w [4]; left = Sub [4] over; "
        "beside = Mod left [4]; pads = Concat [0] [0] [0] [0] [0] below beside [0] axis=0; "
        "padded = Pad x pads; height = Shape padded start=1 end=2; "
        f"width = Shape padded start=2 end=3; {_WINDOWS}",
        sizes=FOURS,
    ),
    "a size made even": _filled(
        "odd = Mod h [2]; is_odd = Equal odd [1]; more = Cast is_odd to=7; n = Add h more"
    ),
    "the smaller size, as a choice": _filled("is_less = Less h w; n = Where is_less h w"),
    "a size or another number, as a choice": _filled(
        "is_more = GreaterOrEqual h w; is_less = Not is_more; is_long = Greater h [4]; "
        "both = And is_less is_long; any = Or both is_more; one_of = Xor any is_long; "
        "n = Where one_of h [4]"
    ),
    "a size between bounds": _filled("n = Clip h 3 6"),
    "a size squared": _filled("n = Pow w [2]"),
    "a shape with another channel": _filled("n = ScatterND shape [[3]] [1]"),
    "half of a size in floats": _filled(
        "real = Cast h to=1; less = Mul real 0.5; up = Ceil less; n = Cast up to=7"
    ),
    "a size in floats, divided and rounded": _filled(
        "real = CastLike h 2.6; part = Div real 2.6; near = Round part; least = Max near 2.6; "
        "n = Cast least to=7"
    ),
    "an image resized by a factor in floats": _resized(
        "real = Cast sizes to=1; larger = Mul real 1.5; down = Floor larger; n = Cast down to=7"
    ),
    "an image resized by a factor that rounds": _resized(
        "real = Cast sizes to=1; larger = Mul real 2.6; n = Cast larger to=7"
    ),
    "an image resized to fit a square": _resized(_FITTED),
    "an image resized to fit, and filled up": _resized(
        _FITTED,
        f"resized = Resize image _ _ wanted mode=linear; {_UP_TO_FOURS}; Pad resized pads",
    ),
    "an image resized by the ratio of sizes": _on_image(
        "image = Transpose x perm=[0,3,1,2]; sizes = Concat h w axis=0; real = Cast sizes to=1; "
        "ratios = Div [6.0,10] real; scales = Concat [1.0,1] ratios axis=0; "
        "Resize image _ scales mode=linear coordinate_transformation_mode=asymmetric"
    ),
    "positions of a size in floats": _on_image(
        "count = Squeeze h; real = Cast count to=1; Range 0.5 real 1.0"
    ),
    "a triangle that begins where sizes differ": _on_image(
        "image = Transpose x perm=[0,3,1,2]; difference = Sub w h; k = Squeeze difference; "
        "Trilu image k upper=1"
    ),
}
