"""How nodes are drawn: a function per kind of operator, which adds nodes to a drawing.

Operators whose results jump (argmax, rounding, comparisons, casts to integers) get values without
rounding errors, so that two right implementations cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from tests.attack.drawn_model import EXTENTS, Drawing
from tests.attack.drawn_movement import (
    concat,
    expand,
    gather,
    one_hot,
    pad,
    reshape,
    scatter,
    slices,
    split,
    transpose,
    triangle,
)

SMOOTH = """Relu Tanh Sigmoid Abs Neg Erf Softplus Softsign LeakyRelu Elu Selu HardSigmoid HardSwish
    Sin Cos Atan Celu Mish Identity ThresholdedRelu Sinh Cosh Asinh Exp""".split()
KEEPING = "Relu Abs Neg Identity".split()
STEPS = "Floor Ceil Round Sign".split()
BINARY = "Add Sub Mul Max Min".split()
COMPARISONS = "Greater Less Equal GreaterOrEqual LessOrEqual".split()
REDUCTIONS = """ReduceSum ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceLogSumExp
    ReduceSumSquare ReduceProd""".split()


def unary(d: Drawing) -> None:
    operator = d.rng.choice(SMOOTH)
    d.node(operator, d.floats(), keeps=operator in KEEPING)


def bounded(d: Drawing) -> None:
    """Operators with a domain, kept inside of it."""
    x = d.floats()
    if above := _at_least_one(d, x):
        d.node(d.rng.choice(("Log", "Sqrt", "Reciprocal")), above)


def _at_least_one(d: Drawing, x: str) -> str:
    """|x| + 1, or "" if the drawing does not take it."""
    magnitude = d.node("Abs", x, keeps=True)
    one = d.constant(np.ones((), d.values[x].dtype), exact=True)
    return d.node("Add", magnitude, one, keeps=True) if magnitude else ""


def steps(d: Drawing) -> None:
    d.node(d.rng.choice(STEPS), d.floats(exact=True), keeps=True)


def binary(d: Drawing) -> None:
    x = d.pick(lambda _, value: value.dtype.kind in "fi" and value.dtype.itemsize >= 4)
    x = x or d.floats()
    operands = [x, d.operand(x)]
    d.rng.shuffle(operands)
    d.node(d.rng.choice(BINARY), *operands, keeps=True)


def divide(d: Drawing) -> None:
    x = d.floats()
    if y := _at_least_one(d, d.operand(x)):
        d.node("Div", x, y)


def power(d: Drawing) -> None:
    x = d.floats()
    if base := _at_least_one(d, x):
        exponent = d.rng.choice((0.5, 2.0, -1.0, 3.0, 1.5))
        d.node("Pow", base, d.constant(np.array(exponent, d.values[x].dtype)))


def variadic(d: Drawing) -> None:
    x = d.floats()
    operands = [x, *(d.operand(x) for _ in range(d.rng.randint(0, 2)))]
    d.node(d.rng.choice(("Sum", "Mean", "Max", "Min")), *operands)


def clip(d: Drawing) -> None:
    x = d.floats()
    dtype = d.values[x].dtype
    low, high = (d.constant(np.array(v, dtype), exact=True) for v in (-0.5, 1.25))
    d.node("Clip", x, d.rng.choice((low, "")), d.rng.choice((high, "")), keeps=True)


def prelu(d: Drawing) -> None:
    x = d.floats(1)
    d.node("PRelu", x, d.like(x, [d.rng.choice((1, n)) for n in d.shape(x)]), keeps=True)


def compare(d: Drawing) -> None:
    x = d.floats(exact=True)
    d.node(d.rng.choice(COMPARISONS), x, d.operand(x))


def _flags(d: Drawing) -> str:
    found = d.pick(lambda _, value: value.dtype == np.bool_)
    return found or d.input(d.array([d.extent() for _ in range(2)], "bool"))


def logic(d: Drawing) -> None:
    x = _flags(d)
    if d.rng.random() < 0.3:
        d.node("Not", x)
    else:
        d.node(d.rng.choice(("And", "Or", "Xor")), x, d.operand(x))


def where(d: Drawing) -> None:
    x = d.floats()
    flags = d.input(d.array([d.rng.choice((1, n)) for n in d.shape(x)], "bool"))
    d.node("Where", flags, x, d.operand(x), keeps=True)


def _whole(d: Drawing) -> str:
    found = d.pick(lambda _, value: value.dtype in (np.int32, np.int64))
    shape = [d.extent() for _ in range(2)]
    return found or d.input(d.array(shape, d.rng.choice(("int32", "int64"))))


def integer(d: Drawing) -> None:
    x = _whole(d)
    dtype = d.values[x].dtype
    if d.rng.random() < 0.5:
        divisor = d.constant(np.array(d.rng.choice((2, 3, 5, -3)), dtype))
        d.node(d.rng.choice(("Div", "Mod")), x, divisor)
    else:
        d.node(d.rng.choice(("Abs", "Neg", "Sign")), x)


def cast(d: Drawing) -> None:
    to = d.rng.choice((1, 11, 6, 7, 9))  # float, double, int32, int64, bool
    if to in (1, 11):
        x = d.pick(lambda _, value: value.dtype.kind in "fib") or d.floats()
    else:
        x = d.rng.choice((d.floats(exact=True), _whole(d)))
    d.node("Cast", x, to=to, keeps=True)


# Windows -----------------------------------------------------------------------------------------


def _image(d: Drawing) -> str:
    found = d.pick(lambda _, v: v.dtype == np.float32 and v.ndim in (3, 4) and v.shape[2] > 1)
    if found and d.rng.random() < 0.8:
        return found
    rank = d.rng.choice((1, 2, 2))
    spatial = [d.extent((1, 3, 5, 7, 8, 9, 13)) for _ in range(rank)]
    channels = d.rng.choice((1, 3, 4, 6, 8, 16))
    return d.input(d.array([d.extent((1, 2)), channels, *spatial]))


def _window(d: Drawing, rank: int, largest: int = 3) -> dict[str, Any]:
    kernel = [d.rng.randint(1, largest) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if d.rng.random() < 0.5:
        attributes["strides"] = [d.rng.randint(1, 3) for _ in range(rank)]
    if d.rng.random() < 0.5:
        attributes["pads"] = [d.rng.randint(0, k - 1) for k in kernel * 2]
    return attributes


def conv(d: Drawing) -> None:
    x = _image(d)
    channels, rank = d.shape(x)[1], len(d.shape(x)) - 2
    groups = d.rng.choice([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
    attributes = _window(d, rank)
    if d.rng.random() < 0.3:
        attributes["dilations"] = [d.rng.randint(1, 2) for _ in range(rank)]
    outputs = groups * d.rng.choice((1, 2, 3, 8))
    weight = d.like(x, [outputs, channels // groups, *attributes["kernel_shape"]])
    bias = [d.like(x, [outputs])] if d.rng.random() < 0.5 else []
    y = d.node("Conv", x, weight, *bias, group=groups, **attributes)
    if y and d.rng.random() < 0.4:
        d.node(d.rng.choice(("Relu", "Sigmoid", "HardSwish")), y)
    if y and d.rng.random() < 0.2:
        d.node("Add", y, d.operand(y))


def conv_transpose(d: Drawing) -> None:
    x = _image(d)
    channels, rank = d.shape(x)[1], len(d.shape(x)) - 2
    groups = d.rng.choice([g for g in (1, 2, channels) if channels % g == 0])
    attributes = _window(d, rank)
    if d.rng.random() < 0.3:
        attributes["dilations"] = [d.rng.randint(1, 2) for _ in range(rank)]
    weight = d.like(x, [channels, d.rng.choice((1, 2, 3)), *attributes["kernel_shape"]])
    d.node("ConvTranspose", x, weight, group=groups, **attributes)


def pool(d: Drawing) -> None:
    x = _image(d)
    operator = d.rng.choice(("MaxPool", "AveragePool", "LpPool"))
    more: dict[str, Any] = {"ceil_mode": d.rng.randint(0, 1)}
    if operator == "AveragePool":
        more["count_include_pad"] = d.rng.randint(0, 1)
    d.node(operator, x, **_window(d, len(d.shape(x)) - 2, 4), **more, keeps=operator == "MaxPool")


def global_pool(d: Drawing) -> None:
    d.node(d.rng.choice(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")), _image(d))


def resize(d: Drawing) -> None:
    x = _image(d)
    mode = d.rng.choice(("nearest", "linear", "linear", "cubic"))
    if mode == "cubic" and len(d.shape(x)) != 4:
        mode = "linear"
    spatial = [d.rng.choice((1, n, 2 * n, n + 2)) for n in d.shape(x)[2:]]
    sizes = d.integers([*d.shape(x)[:2], *spatial])
    coordinates = d.rng.choice(("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"))
    d.node("Resize", x, "", "", sizes, mode=mode, coordinate_transformation_mode=coordinates)


def depth_space(d: Drawing) -> None:
    x = d.input(d.array([1, 8, 4, d.rng.choice((2, 6))]))
    d.node(d.rng.choice(("DepthToSpace", "SpaceToDepth")), x, blocksize=2, keeps=True)


# Products, reductions and norms ------------------------------------------------------------------


def matmul(d: Drawing) -> None:
    x = d.floats(2)
    batch = [d.rng.choice((1, n)) for n in d.shape(x)[:-2]]
    batch = batch[d.rng.randint(0, len(batch)) :]
    d.node("MatMul", x, d.like(x, [*batch, d.shape(x)[-1], d.extent()]))


def gemm(d: Drawing) -> None:
    x = d.pick(lambda _, v: v.dtype.kind == "f" and v.ndim == 2) or d.input(d.array([5, 7]))
    rows, columns = d.shape(x)
    if turned := d.rng.random() < 0.3:
        rows, columns = columns, rows
    wide, other = d.extent(), d.rng.random() < 0.5
    weight = d.like(x, [wide, columns] if other else [columns, wide])
    bias = [d.like(x, d.rng.choice(([wide], [rows, 1], [1]))) for _ in range(d.rng.randint(0, 1))]
    d.node("Gemm", x, weight, *bias, transA=int(turned), transB=int(other), alpha=0.5, beta=2.0)


def einsum(d: Drawing) -> None:
    a, b, i, j, k = (d.extent(EXTENTS[:8]) for _ in range(5))
    equation, left, right = d.rng.choice(
        (
            ("bij,bjk->bik", (b, i, j), (b, j, k)),
            ("ij,kj->ki", (i, j), (k, j)),
            ("abi,abj->abij", (a, b, i), (a, b, j)),
            ("ij,ij->", (i, j), (i, j)),
            ("bij,j->bi", (b, i, j), (j,)),
        )
    )
    d.node("Einsum", d.input(d.array(left)), d.input(d.array(right)), equation=equation)


def reduce(d: Drawing) -> None:
    x = d.floats(1)
    rank = len(d.shape(x))
    axes = d.rng.sample(range(-rank, 0), d.rng.randint(1, rank))
    operator = d.rng.choice(REDUCTIONS)
    kept = d.rng.randint(0, 1)
    if operator == "ReduceSum":
        d.node(operator, x, d.integers(axes), keepdims=kept, keeps=True)
    else:
        d.node(operator, x, d.integers(axes), keepdims=kept, keeps=operator in _EXTREMES)


_EXTREMES = ("ReduceMax", "ReduceMin")


def position(d: Drawing) -> None:
    x = d.floats(1, exact=True)
    d.node(
        d.rng.choice(("ArgMax", "ArgMin")),
        x,
        axis=d.rng.randrange(-len(d.shape(x)), len(d.shape(x))),
        keepdims=d.rng.randint(0, 1),
        select_last_index=d.rng.randint(0, 1),
    )


def cumulate(d: Drawing) -> None:
    x = d.floats(1)
    axis = d.constant(np.array(d.rng.randrange(len(d.shape(x))), np.int64))
    flags: dict[str, Any] = {"exclusive": d.rng.randint(0, 1), "reverse": d.rng.randint(0, 1)}
    d.node("CumSum", x, axis, keeps=True, **flags)


def softmax(d: Drawing) -> None:
    x = d.floats(1)
    axis = d.rng.randrange(-len(d.shape(x)), len(d.shape(x)))
    d.node(d.rng.choice(("Softmax", "Softmax", "LogSoftmax")), x, axis=axis)


def norm(d: Drawing) -> None:
    x = _image(d)
    channels, rest = d.shape(x)[1], d.shape(x)[1:]
    kind = d.rng.choice(("layer", "instance", "batch", "lrn", "lp"))
    if kind == "layer":
        d.node("LayerNormalization", x, d.like(x, rest), d.like(x, rest), axis=1, epsilon=1e-2)
    elif kind == "instance":
        scale, bias = d.like(x, [channels]), d.like(x, [channels])
        d.node("InstanceNormalization", x, scale, bias, epsilon=1e-2)
    elif kind == "batch":
        parts = [d.constant(d.array([channels])) for _ in range(3)]
        variance = d.constant(np.abs(d.array([channels])) + np.float32(0.5))
        d.node("BatchNormalization", x, *parts, variance)
    elif kind == "lrn":
        d.node("LRN", x, size=d.rng.choice((1, 3, 5)), alpha=0.01)
    else:
        d.node("LpNormalization", x, axis=d.rng.choice((1, -1)), p=d.rng.choice((1, 2)))


# Quantised, recurrent, control -------------------------------------------------------------------


def quantise(d: Drawing) -> None:
    x = d.pick(lambda name, v: v.dtype == np.float32 and name in d.exact)
    x = x or d.floats(exact=True)
    if d.values[x].dtype != np.float32:
        return
    dtype = d.rng.choice(("int8", "uint8"))
    scale = d.constant(np.array(d.rng.choice((0.25, 0.5)), np.float32), exact=True)
    zero = d.constant(np.array(d.rng.choice((0, 3, 100)), dtype))
    narrow = d.node("QuantizeLinear", x, scale, zero)
    if narrow and d.rng.random() < 0.8:
        d.node("DequantizeLinear", narrow, scale, zero, keeps=True)


def narrow_matmul(d: Drawing) -> None:
    m, n, k = (d.extent() for _ in range(3))
    left, right = d.input(d.array([m, k], "uint8")), d.constant(d.array([k, n], "int8"))
    zeros = [d.constant(np.array(v, t)) for v, t in ((3, "uint8"), (1, "int8"))]
    d.node("MatMulInteger", left, right, *zeros[: d.rng.randint(0, 2)])


def recurrent(d: Drawing) -> None:
    operator, gates = d.rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    steps, batch = (d.extent((1, 2, 3, 5)) for _ in range(2))
    wide, hidden = (d.rng.choice((1, 2, 3, 5)) for _ in range(2))
    direction = d.rng.choice(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    x = d.input(d.array([steps, batch, wide]))
    weights = [d.constant(d.array([ways, gates * hidden, n])) for n in (wide, hidden)]
    bias = [d.constant(d.array([ways, 2 * gates * hidden]))] if d.rng.random() < 0.5 else []
    d.node(operator, x, *weights, *bias, outputs=2, hidden_size=hidden, direction=direction)


def branch(d: Drawing) -> None:
    """Only the branch that is taken has to be right: its condition is known before."""
    x = d.floats()
    branches: dict[str, Any] = {}
    for name, operator in (("then_branch", "Neg"), ("else_branch", "Tanh")):
        result = f"{name}_{len(d.nodes)}"
        made = helper.make_node(operator, [x], [result])
        info = helper.make_empty_tensor_value_info(result)
        branches[name] = helper.make_graph([made], name, [], [info])
    d.node("If", d.constant(np.array(d.rng.random() < 0.5)), captured=(x,), **branches)


KINDS: tuple[tuple[int, Callable[[Drawing], None]], ...] = (
    (6, unary), (2, bounded), (3, steps), (8, binary), (3, divide), (2, power), (2, variadic),
    (2, clip), (2, prelu), (3, compare), (2, logic), (3, where), (3, integer), (4, cast),
    (5, conv), (2, conv_transpose), (4, pool), (1, global_pool), (4, resize), (1, depth_space),
    (4, matmul), (3, gemm), (2, einsum), (6, reduce), (3, position), (2, cumulate), (4, softmax),
    (4, norm), (4, transpose), (4, reshape), (4, slices), (3, split), (4, concat), (4, expand),
    (4, pad), (4, gather), (3, scatter), (2, triangle), (1, one_hot), (2, quantise),
    (1, narrow_matmul), (1, recurrent), (1, branch),
)  # fmt: skip
"""Each with how often it is drawn relative to the others."""


def add_node(d: Drawing) -> None:
    """Add a node, or a few, of a drawn kind; nothing where that does not fit."""
    weights, kinds = zip(*KINDS, strict=True)
    d.rng.choices(kinds, weights)[0](d)
