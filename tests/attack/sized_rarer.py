"""Kinds of nodes that few models have, on values whose sizes are symbols."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.attack.sized_drawing import SizedDrawing
from tests.attack.sized_shapes import anything, open_axis, real

MICROSOFT = "com.microsoft"


def image(d: SizedDrawing) -> str:
    """A value [batch, channels, height, width] with a symbol."""
    found = d.pick(lambda name, v: v.dtype == np.float32 and v.ndim == 4 and bool(d.varies(name)))
    channels = d.rng.choice((1, 2, 4))
    size = [d.extent((3, 5, 8)) for _ in range(2)]
    return found or d.input(d.array([d.extent((1, 2)), channels, *size]))


def curve(d: SizedDrawing) -> None:
    """Functions with a domain, and activations that are new or onnxruntime's."""
    x = real(d)
    if d.rng.random() < 0.4:
        small = d.node("Mul", d.node("Tanh", x), d.constant(np.array(0.9, np.float32)))
        d.node(d.rng.choice(("Acos", "Asin", "Atanh", "Tan")), small)
    elif d.rng.random() < 0.5:
        d.node(d.rng.choice(("Gelu", "Shrink", "Swish")), x)
    else:
        d.node(d.rng.choice(("Gelu", "QuickGelu", "FastGelu")), x, domain=MICROSOFT)


def undefined(d: SizedDrawing) -> None:
    """Where numbers are none."""
    root = d.node("Not", d.node(d.rng.choice(("IsNaN", "IsInf")), real(d)))
    if root:
        d.node("Cast", root, to=1, keeps=True)


def bits(d: SizedDrawing) -> None:
    """Bits of integers, which a caller gives."""
    shape = [d.extent((1, 3)), d.extent()]
    dtype = d.rng.choice(("int32", "int64", "uint8"))
    x, y = d.input(d.array(shape, dtype)), d.input(d.array(shape[1:], dtype))
    if dtype == "uint8" and d.rng.random() < 0.5:
        by = d.constant(np.array(d.rng.randint(0, 3), np.uint8))
        d.node("BitShift", x, by, direction=d.rng.choice(("LEFT", "RIGHT")))
        return
    made = d.node(d.rng.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), x, y)
    if made and d.rng.random() < 0.5:
        d.node("BitwiseNot", made)


def whitened(d: SizedDrawing) -> None:
    """Normalisations over channels in groups, over everything, and by the root of squares."""
    x = image(d)
    kind = d.rng.choice(("group", "all", "root", "skip", "skip"))
    channels, varies = d.shape(x)[1], d.varies(x)
    if kind == "group" and 1 not in varies:
        parts = [d.constant(d.array([channels])) for _ in range(2)]
        groups = d.rng.choice([g for g in (1, 2, 4) if channels % g == 0])
        d.node("GroupNormalization", x, *parts, num_groups=groups, epsilon=0.1)
    elif kind == "all":
        d.node("MeanVarianceNormalization", x, axes=d.rng.choice(([0, 2, 3], [2, 3], [0])))
    elif kind == "root":
        d.node("RMSNormalization", x, d.like(x, d.shape(x)[-1:]), axis=-1, epsilon=0.1)
    else:
        wide = d.rng.choice((4, 8))
        shape = [d.extent((1, 2)), d.extent((1, 3)), wide]
        rows = [d.input(d.array(shape)) for _ in range(2)]
        scales = [d.constant(d.array([wide])) for _ in range(2)]
        name = d.rng.choice(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"))
        used = scales if name.startswith("SkipL") else scales[:1]
        d.node(name, *rows, *used, domain=MICROSOFT, epsilon=0.1)


def sampled(d: SizedDrawing) -> None:
    """An image at places that a caller gives, or in boxes."""
    x = image(d)
    batch = d.shape(x)[0]
    if d.rng.random() < 0.5:
        shape = [batch, d.extent((1, 3)), d.extent((1, 4)), 2]
        grid = d.input(np.clip(d.array(shape) / 2, -1.2, 1.2))
        mode, padding = (
            d.rng.choice(("linear", "nearest", "cubic")),
            d.rng.choice(("zeros", "border", "reflection")),
        )
        d.node(
            "GridSample",
            x,
            grid,
            mode=mode,
            padding_mode=padding,
            align_corners=d.rng.randint(0, 1),
        )
        return
    count = d.extent((1, 3))
    corners = np.abs(d.array([count, 4]))
    corners[:, 2:] += corners[:, :2] + 1
    which = d.input(np.zeros(count, np.int64))
    d.node(
        "RoiAlign",
        x,
        d.input(corners),
        which,
        output_height=d.rng.choice((1, 2)),
        output_width=2,
        sampling_ratio=d.rng.choice((1, 2)),
        mode=d.rng.choice(("avg", "max")),
    )


def unpooled(d: SizedDrawing) -> None:
    """Maxima with their places, and back to where they were."""
    x = image(d)
    made = d.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], outputs=2)
    if made and d.rng.random() < 0.7:
        d.node("MaxUnpool", made, d.nodes[-1].output[1], kernel_shape=[2, 2], strides=[2, 2])


def transformed(d: SizedDrawing) -> None:
    """Frequencies of signals of any number, of any length, or of one that they are cut to."""
    is_long = d.rng.random() < 0.5
    length = d.extent((4, 8, 10)) if is_long else d.rng.choice((4, 8, 10))
    parts = d.rng.choice((1, 2))
    x = d.input(d.array([d.extent((1, 2)), length, parts]))
    wanted = d.constant(np.array(d.rng.choice((4, 8)))) if d.rng.random() < 0.4 else ""
    flag = "inverse" if parts == 2 else "onesided"
    flags: dict[str, Any] = {flag: d.rng.randint(0, 1)}
    d.node("DFT", x, wanted, d.constant(np.array(1)), **flags)


def deformed(d: SizedDrawing) -> None:
    """Windows that offsets move, over planes of any size."""
    size = [d.extent((1, 2)), 2, d.extent((3, 5)), d.extent((4, 6))]
    x = d.input(d.array(size))
    if not min(d.least(x, 2), d.least(x, 3)):  # of which no window need fit
        return
    offsets = d.input(np.clip(d.array([size[0], 2 * 9, *size[2:]]), -2, 2))
    weight = d.constant(d.array([3, 2, 3, 3]))
    mask = [d.input(d.array([size[0], 9, *size[2:]]))] if d.rng.random() < 0.4 else []
    d.node(
        "DeformConv",
        x,
        weight,
        offsets,
        *(["", *mask] if mask else []),
        pads=[1] * 4,
        kernel_shape=[3, 3],
    )


def folded(d: SizedDrawing) -> None:
    """The columns of an image, which are windows of it, as an image again."""
    x = image(d)
    channels, varies = d.shape(x)[1], d.varies(x)
    if 1 in varies or min(d.least(x, 2), d.least(x, 3)) < 2:
        return
    weight = d.constant(d.array([4 * d.rng.choice((1, 2)), channels, 2, 2]))
    windows = d.node("Conv", x, weight)
    rows = windows and d.node("Reshape", windows, d.integers([0, 0, -1]))
    plane = rows and d.node("Shape", x, start=2)
    if plane:
        d.node("Col2Im", rows, plane, d.integers([2, 2]))


def boxes(d: SizedDrawing) -> None:
    """Boxes of which some cover others."""
    count, batch, classes = d.extent((3, 6)), d.extent((1, 2)), d.extent((1, 2))
    corners = np.abs(d.array([batch, count, 4]))
    corners[..., 2:] += corners[..., :2]
    scores = d.input(np.abs(d.array([batch, classes, count])))
    limits = [
        d.constant(np.array([d.rng.choice((1, 2, 5))])),
        d.constant(np.array([d.rng.choice((0.3, 0.5))], np.float32)),
        d.constant(np.array([0.2], np.float32)),
    ]
    d.node("NonMaxSuppression", d.input(corners), scores, *limits)


def listed(d: SizedDrawing) -> None:
    """Parts of a tensor as a sequence, one of which is taken, or all are joined."""
    x = anything(d)
    axis = d.rng.randrange(len(d.shape(x)))
    number = len(d.nodes)
    name = f"v{number}"
    if d.varies(x) and axis in d.varies(x):
        return
    parts = helper.make_node("SplitToSequence", [x], [f"{name}_parts"], axis=axis)
    joined = helper.make_node(
        "ConcatFromSequence", [f"{name}_parts"], [f"{name}_joined"], axis=axis
    )
    info = helper.make_empty_tensor_value_info(f"{name}_joined")
    body = helper.make_graph([parts, joined], "listed", [], [info])
    other = helper.make_graph(
        [helper.make_node("Identity", [x], [f"{name}_other"])],
        "other",
        [],
        [helper.make_empty_tensor_value_info(f"{name}_other")],
    )
    d.node("If", d.constant(np.array(True)), captured=(x,), then_branch=body, else_branch=other)


def narrow(d: SizedDrawing) -> None:
    """Products of integers with scales."""
    rows, inner, wide = d.extent((1, 3)), d.extent((4, 7)), d.rng.choice((1, 5, 8))
    scale = [d.constant(np.array(s, np.float32)) for s in (0.23, 0.51, 7.7)]  # no ties
    zero = [d.constant(np.array(z, t)) for z, t in ((3, "uint8"), (0, "int8"), (7, "uint8"))]
    kind = d.rng.choice(("matmul", "conv", "convinteger"))
    if kind == "matmul":
        x = d.input(d.array([d.extent((1, 2)), rows, inner], "uint8"))
        w = d.constant(d.array([inner, wide], "int8"))
        d.node("QLinearMatMul", x, scale[0], zero[0], w, scale[1], zero[1], scale[2], zero[2])
        return
    x = d.input(d.array([d.extent((1, 2)), 3, d.extent((5, 7)), d.extent((5, 6))], "uint8"))
    w = d.constant(d.array([4, 3, 2, 2], "int8"))
    if kind == "conv":
        operands = (x, scale[0], zero[0], w, scale[1], zero[1], scale[2], zero[2])
        d.node("QLinearConv", *operands, pads=[1, 0, 1, 0])
    else:
        d.node("ConvInteger", x, w, zero[0], pads=[1, 0, 1, 0])


def attended(d: SizedDrawing) -> None:
    """The operators of attention: ONNX's with heads, and onnxruntime's."""
    heads, size = d.rng.choice((1, 2)), d.rng.choice((4, 8))
    batch, own, other = d.extent((1, 2)), d.extent((1, 4)), d.extent((1, 5))
    query = d.input(d.array([batch, own, heads * size]))
    key, value = (d.input(d.array([batch, other, heads * size])) for _ in range(2))
    if d.rng.random() < 0.4:
        d.node("MultiHeadAttention", query, key, value, domain=MICROSOFT, num_heads=heads)
        return
    more: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads}
    if d.rng.random() < 0.4:
        more["is_causal"] = 1
    mask = [d.input(d.array([own, other]))] if d.rng.random() < 0.4 else []
    d.node("Attention", query, key, value, *mask, **more)


def rotated(d: SizedDrawing) -> None:
    """Positions as angles."""
    batch, steps, heads, size = d.extent((1, 2)), d.extent((1, 5)), 2, 8
    x = d.input(d.array([batch, heads, steps, size]))
    tables = [d.input(d.array([batch, steps, size // 2])) for _ in range(2)]
    d.node("RotaryEmbedding", x, *tables)


def square(d: SizedDrawing) -> None:
    """Determinants, ones on a diagonal, and an axis cut or filled to a size."""
    kind = d.rng.choice(("Det", "EyeLike", "CenterCropPad", "Dropout"))
    if kind == "Det":
        n = d.rng.choice((1, 2, 3))
        d.node("Det", d.input(d.array([d.extent((1, 4)), n, n])))
    elif kind == "EyeLike":
        x = d.input(d.array([d.extent(), d.extent()]))
        d.node("EyeLike", x, k=d.rng.randint(-2, 2), keeps=True)
    elif kind == "CenterCropPad":
        x = real(d)
        size = d.integers([d.rng.choice((2, 5, 9))])
        d.node("CenterCropPad", x, size, axes=[open_axis(d, x)], keeps=True)
    else:
        d.node("Dropout", real(d), keeps=True)


def columns(d: SizedDrawing) -> None:
    """Rows of features as models of sklearn read them, of any number."""
    wide = 4
    x = d.input(d.array([d.extent((1, 3)), wide]))
    kind = d.rng.choice(("Scaler", "Normalizer", "LinearRegressor", "Binarizer", "tree"))
    ml = "ai.onnx.ml"
    if kind == "Scaler":
        d.node(kind, x, domain=ml, offset=[0.5] * wide, scale=[2.0] * wide)
    elif kind == "Normalizer":
        d.node(kind, x, domain=ml, norm=d.rng.choice(("L1", "L2", "MAX")))
    elif kind == "LinearRegressor":
        weights = [d.rng.choice((0.5, -1.0, 2.0)) for _ in range(2 * wide)]
        d.node(kind, x, domain=ml, coefficients=weights, targets=2, intercepts=[0.5, 1.0])
    elif kind == "Binarizer":
        d.node(kind, x, domain=ml, threshold=0.25)
    else:
        d.node(
            "TreeEnsembleRegressor",
            x,
            domain=ml,
            n_targets=1,
            nodes_treeids=[0] * 3,
            nodes_nodeids=[0, 1, 2],
            nodes_featureids=[d.rng.randrange(wide), 0, 0],
            nodes_values=[0.1, 0.0, 0.0],
            nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
            nodes_truenodeids=[1, 0, 0],
            nodes_falsenodeids=[2, 0, 0],
            target_treeids=[0, 0],
            target_nodeids=[1, 2],
            target_ids=[0, 0],
            target_weights=[1.0, -2.0],
        )


def rows_updated(d: SizedDrawing) -> None:
    """Rows of an open axis, at places that a caller gives and that lie at all sizes."""
    x = real(d, 2)
    least = d.least(x, 0)
    if not least:
        return
    count = d.extent((1, 2, 3))
    rng = np.random.default_rng(d.rng.getrandbits(32))
    rows = d.input(rng.integers(-least, least, (count, 1)))
    updates = d.input(d.array([count, *d.shape(x)[1:]], exact=True), exact=True)
    d.node("ScatterND", x, rows, updates, reduction=d.rng.choice(("add", "max", "min")))


def half_moved(d: SizedDrawing) -> None:
    """Moves of 16-bit floats."""
    x = real(d, 2, exact=True)
    narrow_one = d.node("Cast", x, to=10, keeps=True)
    order = list(reversed(range(len(d.shape(x)))))
    turned = narrow_one and d.node("Transpose", narrow_one, perm=order, keeps=True)
    doubled = turned and d.node("Concat", turned, turned, axis=0, keeps=True)
    if doubled:
        d.node("Cast", doubled, to=1, keeps=True)
