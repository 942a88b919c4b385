"""Windows, samples and picks whose places depend on dynamic sizes."""

from __future__ import annotations

from typing import Any

from tests.compiler.frontend.onnx_models import node
from tests.compiler.frontend.sized_cases import Case, floats, on_image, on_shapes


def _sampled(mode: str, padding: str, align: int) -> Case:
    return Case(
        [node("GridSample", "x g", mode=mode, padding_mode=padding, align_corners=align)],
        {"x": ("b", 3, "h", "w"), "g": ("b", "p", "q", 2)},
        {"b": "1..2", "h": "2..9", "w": "2..8", "p": "1..5", "q": "1..6"},
        [
            {"b": 1, "h": 5, "w": 3, "p": 3, "q": 2},
            {"b": 2, "h": 2, "w": 8, "p": 5, "q": 6},
            {"b": 2, "h": 9, "w": 7, "p": 1, "q": 5},
        ],
        opset=20,
    )


_KERNELS: dict[str, str] = {"b": "1..2", "h": "6..9", "k": "1..3"}
_KERNEL_SIZES = [{"b": 1, "h": 6, "k": 2}, {"b": 2, "h": 9, "k": 1}, {"b": 2, "h": 7, "k": 3}]


def _framed(policy: str) -> Case:
    """An image resized to fit a frame, or to fill it, as high and wide as before in proportion."""
    return Case(
        [
            node(
                "Resize", "x _ _ [6,7]", mode="linear", axes=[2, 3], keep_aspect_ratio_policy=policy
            )
        ],
        {"x": (1, 2, "h", "w")},
        {"h": "2..9", "w": "2..8"},
        [{"h": 5, "w": 3}, {"h": 2, "w": 8}, {"h": 8, "w": 8}],
    )


def _smoothed(mode: str, **attributes: Any) -> Case:
    """An image resized to other sizes, whose elements weigh as the sizes say."""
    return Case(
        [
            node("Shape", "z", "hw"),
            node("Concat", "[1,2] hw", "to", axis=0),
            node("Resize", "x _ _ to", mode=mode, **attributes),
        ],
        {"x": (1, 2, "h", 9), "z": ("p", "q")},
        {"h": "2..12", "p": "1..14", "q": "2..9"},
        [{"h": 5, "p": 2, "q": 3}, {"h": 12, "p": 1, "q": 9}, {"h": 2, "p": 14, "q": 2}],
    )


def _transformed(parts: int, **attributes: Any) -> Case:
    """Signals of any length along an axis that is not the last."""
    return Case(
        [node("DFT", "x _ 1", **attributes)],
        {"x": ("b", "n", 2, parts)},
        {"b": "1..2", "n": "1..12"},
        [{"b": 1, "n": 5}, {"b": 2, "n": 8}, {"b": 1, "n": 12}, {"b": 2, "n": 1}],
        opset=20,
    )


PLACE_CASES: dict[str, Case] = {
    "resize_linear_smoothed": _smoothed("linear", antialias=1),
    "resize_cubic_smoothed": _smoothed("cubic", antialias=1),
    "resize_cubic_of_what_is_inside": _smoothed("cubic", exclude_outside=1),
    "resize_twice_as_large_smoothed": on_image(
        "Resize", "_ [1.0,1,2,2]", mode="linear", antialias=1, exclude_outside=1
    ),
    "resize_halves_smoothed": on_image("Resize", "_ [1.0,1,0.5,1.5]", mode="linear", antialias=1),
    "dft": _transformed(2),
    "dft_one_sided": _transformed(1, onesided=1),
    "dft_inverse": _transformed(2, inverse=1),
    **{
        f"grid_sample_{mode}_{padding}_{align}": _sampled(mode, padding, align)
        for mode, padding, align in (
            ("linear", "zeros", 0),
            ("linear", "reflection", 1),
            ("nearest", "reflection", 0),
            ("cubic", "border", 1),
            ("cubic", "reflection", 0),
            ("cubic", "reflection", 1),
        )
    },
    "columns_of_an_image": Case(
        [
            node("Shape", "z", "image"),
            node("Col2Im", "x image [3,3]", strides=[2, 1], pads=[1, 0, 1, 1], dilations=[1, 2]),
        ],
        {"x": ("b", 18, "n"), "z": ("h", "w")},
        {"b": "1..2", "h": "3..7", "w": "5..7", "n": "1..40"},
        [{"b": 1, "h": 3, "w": 5, "n": 4}, {"b": 2, "h": 6, "w": 7, "n": 12}],
    ),
    "windows_that_offsets_move": Case(
        [node("DeformConv", "x w o", kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 1, 1])],
        {"x": ("b", 2, "h", "w"), "o": ("b", 18, "p", "w")},
        {"b": "1..2", "h": "2..9", "w": "2..8", "p": "1..5"},
        [{"b": 1, "h": 5, "w": 3, "p": 3}, {"b": 2, "h": 2, "w": 8, "p": 1}],
        {"w": floats(3, 2, 3, 3)},
        opset=19,
    ),
    **{
        f"roi_align_{mode}": Case(
            [
                node("Abs", "corners", "begin"),
                node("Abs", "far", "more"),
                node("Add", "begin more", "end"),
                node("Concat", "begin end", "regions", axis=1),
                node(
                    "RoiAlign",
                    "x regions i",
                    sampling_ratio=2,
                    output_height=2,
                    output_width=3,
                    spatial_scale=3.0,
                    mode=mode,
                ),
            ],
            {"x": ("b", 3, "h", "w"), "corners": ("r", 2), "far": ("r", 2), "i": ("r",)},
            {"b": "3..4", "h": "2..9", "w": "2..8", "r": "1..5"},
            [{"b": 3, "h": 5, "w": 3, "r": 2}, {"b": 3, "h": 2, "w": 2, "r": 5}],
            integers=("i",),
        )
        for mode in ("avg", "max")
    },
    "roi_align": Case(
        [node("RoiAlign", "x regions i", sampling_ratio=2, output_height=2, output_width=3)],
        {"x": ("b", 3, "h", "w"), "regions": ("r", 4), "i": ("r",)},
        {"b": "1..3", "h": "3..9", "w": "3..8", "r": "1..5"},
        [{"b": 3, "h": 5, "w": 3, "r": 2}, {"b": 3, "h": 9, "w": 8, "r": 5}],
        integers=("i",),
    ),
    "stft": Case(
        [node("STFT", "x 3 window 8")],
        {"x": ("b", "n", 1)},
        {"b": "1..2", "n": "8..40"},
        [{"b": 1, "n": 8}, {"b": 2, "n": 23}, {"b": 1, "n": 40}],
        {"window": floats(8)},
    ),
    "dft_of_a_length": Case(
        [node("DFT", "x 8")],
        {"x": ("b", "n", 1)},
        {"b": "1..2", "n": "5..12"},
        [{"b": 1, "n": 5}, {"b": 2, "n": 8}, {"b": 1, "n": 12}],
    ),
    "eye_like": Case(
        [node("EyeLike", "x", "e", k=1), node("MatMul", "e x", "y")],
        {"x": ("s", "s")},
        {"s": "1..7"},
        [{"s": 1}, {"s": 4}, {"s": 7}],
    ),
    "resize_cubic_by_sizes": Case(
        [
            node("Shape", "x", "sx"),
            node("Slice", "sx [2] [4]", "hw"),
            node("Add", "hw [2]", "more"),
            node("Slice", "sx [0] [2]", "nc"),
            node("Concat", "nc more", "to", axis=0),
            node("Resize", "x _ _ to", mode="cubic"),
        ],
        {"x": ("b", 3, "h", "w")},
        {"b": "1..2", "h": "2..9", "w": "3..8"},
        [{"b": 1, "h": 5, "w": 3}, {"b": 2, "h": 9, "w": 8}],
    ),
    "resize_by_tenths": on_image("Resize", "_ [1.0,1,0.6,1.2]", mode="linear"),
    **{
        f"average_same_{side}_{counts}": on_image(
            "AveragePool",
            kernel_shape=[3, 2],
            strides=[2, 2],
            auto_pad=f"SAME_{side}",
            count_include_pad=counts,
        )
        for side, counts in (("UPPER", 0), ("LOWER", 0), ("UPPER", 1))
    },
    **{
        f"average_of_a_cut_window_{opset}_{ceil}_{counts}": Case(
            [
                node(
                    "AveragePool",
                    "x",
                    kernel_shape=[4],
                    strides=[3],
                    ceil_mode=ceil,
                    count_include_pad=counts,
                )
            ],
            {"x": (1, 2, "s")},
            {"s": "3..10"},
            [{"s": 3}, {"s": 4}, {"s": 10}],
            opset=opset,
        )
        for opset, ceil, counts in ((11, 0, 1), (11, 0, 0), (22, 1, 1), (22, 0, 0))
    },
    "average_of_windows_that_are_always_cut": Case(
        [node("AveragePool", "x", kernel_shape=[4], strides=[3], count_include_pad=1)],
        {"x": (1, 2, "s")},
        {"s": "2..3"},
        [{"s": 2}, {"s": 3}],
        opset=11,
    ),
    "center_crop_pad": Case(
        [
            node("Shape", "z", "sz"),
            node("CenterCropPad", "x [5]", "fixed", axes=[1]),
            node("CenterCropPad", "fixed sz"),
        ],
        {"x": ("b", "s"), "z": ("p", "q")},
        {"b": "1..3", "s": "1..9", "p": "1..5", "q": "1..8"},
        [
            {"b": 1, "s": 9, "p": 3, "q": 8},
            {"b": 3, "s": 2, "p": 2, "q": 1},
            {"b": 2, "s": 5, "p": 5, "q": 4},
        ],
    ),
    "resize_nearest_at_middles": Case(
        [node("Resize", "x _ _ [1,1,21]", mode="nearest", nearest_mode="round_prefer_floor")],
        {"x": (1, 1, "s")},
        {"s": "17..19"},
        [{"s": 17}, {"s": 18}, {"s": 19}],
    ),
    "average_ceil": on_image(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, opset=22
    ),
    "lp_same": on_image(
        "LpPool", kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER", opset=18
    ),
    "max_places": Case(
        [node("MaxPool", "x", "m y", kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 0, 1])],
        {"x": ("b", "c", "h", "w")},
        {"b": "1..2", "c": "1..3", "h": "2..7", "w": "3..8"},
        [{"b": 1, "c": 2, "h": 4, "w": 5}, {"b": 2, "c": 3, "h": 7, "w": 8}],
        outputs=("m", "y"),
    ),
    "max_unpool": Case(
        [
            node("MaxPool", "x", "m i", kernel_shape=[2, 2], strides=[2, 2]),
            node("MaxUnpool", "m i", "y", kernel_shape=[2, 2], strides=[2, 2]),
        ],
        {"x": ("b", 2, "h", "w")},
        {"b": "1..2", "h": "2..8", "w": "2..8"},
        [{"b": 1, "h": 4, "w": 6}, {"b": 2, "h": 8, "w": 2}],
    ),
    "one_hot_of_size": on_shapes(
        node("Gather", "shape 1", "s"), node("OneHot", "[0,-1,6,-3,2] s [0.5,2]", "y", axis=1)
    ),
    "suppression": Case(
        [
            node("Slice", "x [0] [4] [3]", "p"),
            node("Abs", "p", "q"),
            node("Reshape", "q [1,-1,4]", "boxes"),
            node("Slice", "x [4] [5] [3]", "s"),
            node("Reshape", "s [1,1,-1]", "scores"),
            node("NonMaxSuppression", "boxes scores [4] [0.3] [-0.5]", "y"),
        ],
        {"x": (1, "h", "w", 5)},
        {"h": "1..4", "w": "1..5"},
        [{"h": 2, "w": 3}, {"h": 4, "w": 5}, {"h": 1, "w": 1}],
    ),
    "scatter_in_a_corner": Case(
        [node("ScatterElements", "x i u", axis=0)],
        {"x": (4, "s"), "i": (2, 2), "u": (2, 2)},
        {"s": "2..7"},
        [{"s": 2}, {"s": 5}, {"s": 7}],
        integers=("i",),
    ),
    "scatter in a corner of any size": Case(
        [node("ScatterElements", "x i u", axis=0, reduction="add")],
        {"x": (4, 3, "s"), "i": ("n", "n", 2), "u": ("k", "n", 2)},
        {"s": "2..7", "n": "1..4", "k": "1..5"},
        [{"s": 2, "n": 3, "k": 3}, {"s": 5, "n": 1, "k": 1}, {"s": 7, "n": 2, "k": 2}],
        integers=("i",),
    ),
    "scatter into as many columns as there are of another size": Case(
        [node("ScatterElements", "x i u", axis=1)],
        {"x": ("s", 4), "i": ("n", "k"), "u": ("n", "k")},
        {"s": "2..7", "n": "1..9", "k": "1..5"},
        [{"s": 2, "n": 1, "k": 3}, {"s": 5, "n": 5, "k": 4}, {"s": 7, "n": 4, "k": 5}],
        integers=("i",),
    ),
    "scatter of rows whose sizes are those of other symbols": Case(
        [node("ScatterND", "x i u", reduction="max")],
        {"x": (4, "s"), "i": ("n", 2, 1), "u": ("k", 2, "t")},
        {"s": "2..7", "n": "1..4", "k": "1..5", "t": "1..8"},
        [{"s": 2, "n": 3, "k": 3, "t": 2}, {"s": 7, "n": 1, "k": 1, "t": 7}],
        integers=("i",),
    ),
    "scatter of expanded places": Case(
        [
            node("Unsqueeze", "i [1]", "column"),
            node("Shape", "u", "whole"),
            node("Expand", "column whole", "wide"),
            node("ScatterElements", "x wide u", axis=0, reduction="add"),
        ],
        {"x": (4, 6), "i": ("n",), "u": ("n", 6)},
        {"n": "1..9"},
        [{"n": 1}, {"n": 5}, {"n": 9}],
        integers=("i",),
    ),
    "conv of any kernel": Case(
        [node("Conv", "x z", strides=[2], pads=[1, 2], dilations=[2])],
        {"x": ("b", 4, "h"), "z": (3, 4, "k")},
        _KERNELS,
        _KERNEL_SIZES,
    ),
    "conv of any kernel, padded alike": Case(
        [node("Conv", "x z", strides=[2], auto_pad="SAME_LOWER")],
        {"x": ("b", 4, "h"), "z": (3, 4, "k")},
        _KERNELS,
        _KERNEL_SIZES,
    ),
    "conv of a kernel that the node says": Case(
        [node("Conv", "x z", kernel_shape=[3])],
        {"x": ("b", 4, "h"), "z": (3, 4, "k")},
        _KERNELS,
        [{"b": 2, "h": 6, "k": 3}],
    ),
    "transposed conv of any kernel": Case(
        [node("ConvTranspose", "x z", strides=[2], pads=[1, 0], output_padding=[1])],
        {"x": ("b", 4, "h"), "z": (4, 3, "k")},
        _KERNELS,
        _KERNEL_SIZES,
    ),
    "transposed conv of any kernel, padded alike": Case(
        [node("ConvTranspose", "x z", strides=[2], auto_pad="SAME_UPPER")],
        {"x": ("b", 4, "h"), "z": (4, 3, "k")},
        {**_KERNELS, "k": "2..5"},
        [{"b": 1, "h": 6, "k": 2}, {"b": 2, "h": 9, "k": 5}, {"b": 2, "h": 7, "k": 3}],
    ),
    "transposed conv of a given shape": Case(
        [node("ConvTranspose", "x w b3", strides=[2], output_shape=[9])],
        {"x": ("b", 4, "h")},
        {"b": "1..2", "h": "3..6"},
        [{"b": 1, "h": 4}, {"b": 2, "h": 6}, {"b": 2, "h": 5}],
        {"w": floats(4, 3, 3), "b3": floats(3)},
    ),
    "resize to fit a frame": _framed("not_larger"),
    "resize to fill a frame": _framed("not_smaller"),
    "crop resized": Case(
        [
            node(
                "Resize",
                "x [0.0,0,0.25,-0.5,1,1,0.75,1.25] _ [1,2,4,5]",
                mode="linear",
                coordinate_transformation_mode="tf_crop_and_resize",
                extrapolation_value=7.0,
            )
        ],
        {"x": (1, 2, "h", "w")},
        {"h": "2..9", "w": "2..8"},
        [{"h": 5, "w": 3}, {"h": 2, "w": 8}],
    ),
}
