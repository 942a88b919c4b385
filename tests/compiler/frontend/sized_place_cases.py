"""Windows, samples and picks whose places depend on dynamic sizes."""

from __future__ import annotations

from tests.compiler.frontend.sized_cases import Case, case, floats, on_image, on_shapes


def _sampled(mode: str, padding: str, align: int) -> Case:
    return case(
        "x[b,3,h,w] g[b,p,q,2]",
        f"GridSample x g mode={mode} padding_mode={padding} align_corners={align}",
        "b 1..2: 1 2 2, h 2..9: 5 2 9, w 2..8: 3 8 7, p 1..5: 3 5 1, q 1..6: 2 6 5",
        opset=20,
    )


_KERNELS = "b 1..2: 1 2 2, h 6..9: 6 9 7, k 1..3: 2 1 3"


def _framed(policy: str) -> Case:
    """An image resized to fit a frame, or to fill it, as high and wide as before in proportion."""
    return case(
        "x[1,2,h,w]",
        f"Resize x _ _ [6,7] mode=linear axes=[2,3] keep_aspect_ratio_policy={policy}",
        "h 2..9: 5 2 8, w 2..8: 3 8 8",
    )


def _smoothed(how: str) -> Case:
    """An image resized to other sizes, whose elements weigh as the sizes say."""
    return case(
        "x[1,2,h,9] z[p,q]",
        f"hw = Shape z; to = Concat [1,2] hw axis=0; Resize x _ _ to {how}",
        "h 2..12: 5 12 2, p 1..14: 2 1 14, q 2..9: 3 9 2",
    )


def _transformed(parts: int, how: str) -> Case:
    """Signals of any length along an axis that is not the last."""
    sizes = "b 1..2: 1 2 1 2, n 1..12: 5 8 12 1"
    return case(f"x[b,n,2,{parts}]", f"DFT x _ 1 {how}", sizes, opset=20)


PLACE_CASES: dict[str, Case] = {
    "resize_linear_smoothed": _smoothed("mode=linear antialias=1"),
    "resize_cubic_smoothed": _smoothed("mode=cubic antialias=1"),
    "resize_cubic_of_what_is_inside": _smoothed("mode=cubic exclude_outside=1"),
    "resize_twice_as_large_smoothed": on_image(
        "Resize x _ [1.0,1,2,2] mode=linear antialias=1 exclude_outside=1"
    ),
    "resize_halves_smoothed": on_image("Resize x _ [1.0,1,0.5,1.5] mode=linear antialias=1"),
    "dft": _transformed(2, ""),
    "dft_one_sided": _transformed(1, "onesided=1"),
    "dft_inverse": _transformed(2, "inverse=1"),
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
    "columns_of_an_image": case(
        "x[b,18,n] z[h,w]",
        "image = Shape z; Col2Im x image [3,3] strides=[2,1] pads=[1,0,1,1] dilations=[1,2]",
        "b 1..2: 1 2, h 3..7: 3 6, w 5..7: 5 7, n 1..40: 4 12",
    ),
    "windows_that_offsets_move": case(
        "x[b,2,h,w] o[b,18,p,w]",
        "DeformConv x w o kernel_shape=[3,3] strides=[2,1] pads=[1,1,1,1]",
        "b 1..2: 1 2, h 2..9: 5 2, w 2..8: 3 8, p 1..5: 3 1",
        w=floats(3, 2, 3, 3),
        opset=19,
    ),
    **{
        f"roi_align_{mode}": case(
            "x[b,3,h,w] corners[r,2] far[r,2] int i[r]",
            "begin = Abs corners; more = Abs far; end = Add begin more; "
            "regions = Concat begin end axis=1; "
            f"RoiAlign x regions i sampling_ratio=2 output_height=2 output_width=3 "
            f"spatial_scale=3.0 mode={mode}",
            "b 3..4: 3, h 2..9: 5 2, w 2..8: 3 2, r 1..5: 2 5",
        )
        for mode in ("avg", "max")
    },
    "roi_align": case(
        "x[b,3,h,w] regions[r,4] int i[r]",
        "RoiAlign x regions i sampling_ratio=2 output_height=2 output_width=3",
        "b 1..3: 3, h 3..9: 5 9, w 3..8: 3 8, r 1..5: 2 5",
    ),
    "stft": case(
        "x[b,n,1]", "STFT x 3 window 8", "b 1..2: 1 2 1, n 8..40: 8 23 40", window=floats(8)
    ),
    "dft_of_a_length": case("x[b,n,1]", "DFT x 8", "b 1..2: 1 2 1, n 5..12: 5 8 12"),
    "eye_like": case("x[s,s]", "e = EyeLike x k=1; MatMul e x", "s 1..7: 1 4 7"),
    "resize_cubic_by_sizes": case(
        "x[b,3,h,w]",
        "sx = Shape x; hw = Slice sx [2] [4]; more = Add hw [2]; nc = Slice sx [0] [2]; "
        "to = Concat nc more axis=0; Resize x _ _ to mode=cubic",
        "b 1..2: 1 2, h 2..9: 5 9, w 3..8: 3 8",
    ),
    "resize_by_tenths": on_image("Resize x _ [1.0,1,0.6,1.2] mode=linear"),
    **{
        f"average_same_{side}_{counts}": on_image(
            f"AveragePool x kernel_shape=[3,2] strides=[2,2] auto_pad=SAME_{side} "
            f"count_include_pad={counts}"
        )
        for side, counts in (("UPPER", 0), ("LOWER", 0), ("UPPER", 1))
    },
    **{
        f"average_of_a_cut_window_{opset}_{ceil}_{counts}": case(
            "x[1,2,s]",
            f"AveragePool x kernel_shape=[4] strides=[3] ceil_mode={ceil} "
            f"count_include_pad={counts}",
            "s 3..10: 3 4 10",
            opset=opset,
        )
        for opset, ceil, counts in ((11, 0, 1), (11, 0, 0), (22, 1, 1), (22, 0, 0))
    },
    "average_of_windows_that_are_always_cut": case(
        "x[1,2,s]",
        "AveragePool x kernel_shape=[4] strides=[3] count_include_pad=1",
        "s 2..3: 2 3",
        opset=11,
    ),
    "center_crop_pad": case(
        "x[b,s] z[p,q]",
        "sz = Shape z; fixed = CenterCropPad x [5] axes=[1]; CenterCropPad fixed sz",
        "b 1..3: 1 3 2, s 1..9: 9 2 5, p 1..5: 3 2 5, q 1..8: 8 1 4",
    ),
    "resize_nearest_at_middles": case(
        "x[1,1,s]",
        "Resize x _ _ [1,1,21] mode=nearest nearest_mode=round_prefer_floor",
        "s 17..19: 17 18 19",
    ),
    "average_ceil": on_image(
        "AveragePool x kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1] ceil_mode=1", opset=22
    ),
    "lp_same": on_image("LpPool x kernel_shape=[3,2] strides=[2,2] auto_pad=SAME_UPPER", opset=18),
    "max_places": case(
        "x[b,c,h,w]",
        "m y = MaxPool x kernel_shape=[2,3] strides=[2,1] pads=[0,1,0,1]",
        "b 1..2: 1 2, c 1..3: 2 3, h 2..7: 4 7, w 3..8: 5 8",
        outputs=("m", "y"),
    ),
    "max_unpool": case(
        "x[b,2,h,w]",
        "m i = MaxPool x kernel_shape=[2,2] strides=[2,2]; "
        "MaxUnpool m i kernel_shape=[2,2] strides=[2,2]",
        "b 1..2: 1 2, h 2..8: 4 8, w 2..8: 6 2",
    ),
    "one_hot_of_size": on_shapes("s = Gather shape 1; OneHot [0,-1,6,-3,2] s [0.5,2] axis=1"),
    "suppression": case(
        "x[1,h,w,5]",
        "p = Slice x [0] [4] [3]; q = Abs p; boxes = Reshape q [1,-1,4]; s = Slice x [4] [5] [3]; "
        "scores = Reshape s [1,1,-1]; NonMaxSuppression boxes scores [4] [0.3] [-0.5]",
        "h 1..4: 2 4 1, w 1..5: 3 5 1",
    ),
    "scatter_in_a_corner": case(
        "x[4,s] int i[2,2] u[2,2]", "ScatterElements x i u axis=0", "s 2..7: 2 5 7"
    ),
    "scatter in a corner of any size": case(
        "x[4,3,s] int i[n,n,2] u[k,n,2]",
        "ScatterElements x i u axis=0 reduction=add",
        "s 2..7: 2 5 7, n 1..4: 3 1 2, k 1..5: 3 1 2",
    ),
    "scatter into as many columns as there are of another size": case(
        "x[s,4] int i[n,k] u[n,k]",
        "ScatterElements x i u axis=1",
        "s 2..7: 2 5 7, n 1..9: 1 5 4, k 1..5: 3 4 5",
    ),
    "scatter of rows whose sizes are those of other symbols": case(
        "x[4,s] int i[n,2,1] u[k,2,t]",
        "ScatterND x i u reduction=max",
        "s 2..7: 2 7, n 1..4: 3 1, k 1..5: 3 1, t 1..8: 2 7",
    ),
    "scatter of expanded places": case(
        "x[4,6] int i[n] u[n,6]",
        "column = Unsqueeze i [1]; whole = Shape u; wide = Expand column whole; "
        "ScatterElements x wide u axis=0 reduction=add",
        "n 1..9: 1 5 9",
    ),
    "conv of any kernel": case(
        "x[b,4,h] z[3,4,k]",
        "Conv x z strides=[2] pads=[1,2] dilations=[2]",
        _KERNELS,
    ),
    "conv of any kernel, padded alike": case(
        "x[b,4,h] z[3,4,k]", "Conv x z strides=[2] auto_pad=SAME_LOWER", _KERNELS
    ),
    "conv of a kernel that the node says": case(
        "x[b,4,h] z[3,4,k]", "Conv x z kernel_shape=[3]", "b 1..2: 2, h 6..9: 6, k 1..3: 3"
    ),
    "transposed conv of any kernel": case(
        "x[b,4,h] z[4,3,k]",
        "ConvTranspose x z strides=[2] pads=[1,0] output_padding=[1]",
        _KERNELS,
    ),
    "transposed conv of any kernel, padded alike": case(
        "x[b,4,h] z[4,3,k]",
        "ConvTranspose x z strides=[2] auto_pad=SAME_UPPER",
        "b 1..2: 1 2 2, h 6..9: 6 9 7, k 2..5: 2 5 3",
    ),
    "transposed conv of a given shape": case(
        "x[b,4,h]",
        "ConvTranspose x w b3 strides=[2] output_shape=[9]",
        "b 1..2: 1 2 2, h 3..6: 4 6 5",
        w=floats(4, 3, 3),
        b3=floats(3),
    ),
    "resize to fit a frame": _framed("not_larger"),
    "resize to fill a frame": _framed("not_smaller"),
    "crop resized": case(
        "x[1,2,h,w]",
        "Resize x [0.0,0,0.25,-0.5,1,1,0.75,1.25] _ [1,2,4,5] mode=linear "
        "coordinate_transformation_mode=tf_crop_and_resize extrapolation_value=7.0",
        "h 2..9: 5 2, w 2..8: 3 8",
    ),
}
