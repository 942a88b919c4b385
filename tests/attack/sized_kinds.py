"""Kinds of nodes on values whose sizes are symbols, beside those that all drawn models have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.attack.drawn_operators import KINDS as FIXED_KINDS
from tests.attack.sized_arithmetic import ARITHMETIC
from tests.attack.sized_control import CONTROL
from tests.attack.sized_drawing import SizedDrawing
from tests.attack.sized_rarer import (
    attended,
    bits,
    boxes,
    columns,
    curve,
    deformed,
    folded,
    half_moved,
    listed,
    narrow,
    rotated,
    rows_updated,
    sampled,
    square,
    transformed,
    undefined,
    unpooled,
    whitened,
)
from tests.attack.sized_shapes import (
    chunks,
    filled,
    grown,
    joined,
    number_of_elements,
    open_axis,
    padded,
    part,
    picked,
    picked_elements,
    positions,
    real,
    repeated,
    rows_product,
    square_mask,
    there_and_back,
    turned,
    turned_over,
    view,
)


def attention(d: SizedDrawing) -> None:
    """Of positions of a sentence to each other, with or without a mask."""
    x = real(d, 2)
    rank = len(d.shape(x))
    order = [*range(rank - 2), rank - 1, rank - 2]
    scores = d.node("MatMul", x, d.node("Transpose", x, perm=order))
    if scores and d.rng.random() < 0.5:
        square = [sample[x].shape[-2] for sample in d.samples]
        mask = [np.triu(np.full((n, n), -9.0, np.float32), 1) for n in square]
        scores = d.node("Add", scores, d.input_of(mask, exact=True))
    weights = scores and d.node("Softmax", scores, axis=-1)
    if weights:
        d.node("MatMul", weights, x)


def product(d: SizedDrawing) -> None:
    """Over an axis of a symbol, or one beside it."""
    x, y = real(d, 2), real(d, 2)
    order = [*range(len(d.shape(y)) - 2), len(d.shape(y)) - 1, len(d.shape(y)) - 2]
    if d.rng.random() < 0.5:
        y = d.node("Transpose", y, perm=order, keeps=True)
    d.node("MatMul", x, y)


def sums(d: SizedDrawing) -> None:
    """Over axes with symbols, and back to each position at times."""
    x = real(d)
    operator = d.rng.choice(
        """ReduceSum ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceLogSumExp
        ReduceSumSquare ReduceLogSum ReduceProd""".split()
    )
    if operator == "ReduceLogSum":
        x = d.node("Exp", x) or x
    rank = len(d.shape(x))
    axes = d.rng.sample(range(rank), d.rng.randint(1, rank))
    kept = d.rng.randint(0, 1)
    made = d.node(operator, x, d.integers(axes), keepdims=kept)
    if made and kept:
        d.node(d.rng.choice(("Add", "Sub")), x, made)


def spread(d: SizedDrawing) -> None:
    """Mean and variance as they are spelled out."""
    x = real(d)
    axis = d.integers([open_axis(d, x)])
    mean = d.node("ReduceMean", x, axis, keepdims=1)
    centred = mean and d.node("Sub", x, mean)
    square = centred and d.node("Mul", centred, centred)
    variance = square and d.node("ReduceMean", square, axis, keepdims=1)
    epsilon = d.constant(np.array(0.1, np.float32))
    root = variance and d.node("Sqrt", d.node("Add", variance, epsilon))
    if root:
        d.node("Div", centred, root)


def along(d: SizedDrawing) -> None:
    """What goes along an axis with a symbol."""
    x = real(d)
    axis = open_axis(d, x)
    operator = d.rng.choice(
        ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "CumSum", "ArgMax", "ArgMin")
    )
    if operator in ("ArgMax", "ArgMin", "Hardmax"):
        x = real(d, exact=True)
        axis = open_axis(d, x)
    if operator == "CumSum":
        flags: dict[str, Any] = {"exclusive": d.rng.randint(0, 1), "reverse": d.rng.randint(0, 1)}
        d.node(operator, x, d.constant(np.array(axis)), **flags)
    else:
        d.node(operator, x, axis=axis)


def normalised(d: SizedDrawing) -> None:
    """Rows behind an axis, whose scales are symbols where the axis is."""
    x = real(d, 2)
    rest = d.shape(x)[-1:]
    kind = d.rng.choice(("layer", "layer", "instance", "group"))
    if kind == "layer":
        gain = d.like(x, rest)
        bias = [d.like(x, rest)] if d.rng.random() < 0.5 else []
        d.node("LayerNormalization", x, gain, *bias, axis=-1, epsilon=0.1)
    elif len(d.shape(x)) >= 3 and 1 not in d.varies(x):
        channels = d.shape(x)[1]
        parts = [d.constant(d.array([channels])) for _ in range(2)]
        d.node("InstanceNormalization", x, *parts, epsilon=0.1)


def found(d: SizedDrawing) -> None:
    """Where something is, how much of it, and what is there."""
    x = real(d, exact=True)
    kind = d.rng.choice(("NonZero", "Compress", "Compress", "Unique", "places"))
    zero = d.constant(np.zeros((), np.float32), exact=True)
    if kind == "NonZero":
        d.node("NonZero", d.node("Relu", x, keeps=True))
    elif kind == "Compress":
        axis = open_axis(d, x)
        row = [sample[x].shape[axis] for sample in d.samples]
        flags = [np.array([d.rng.random() < 0.6 for _ in range(n)], bool) for n in row]
        d.node("Compress", x, d.input_of(flags), axis=axis, keeps=True)
    elif kind == "Unique":
        d.node("Unique", d.node("Floor", x, keeps=True), outputs=d.rng.choice((1, 4)), keeps=True)
    else:
        where = d.node("NonZero", d.node("Greater", x, zero))
        rows = where and d.node("Transpose", where, perm=[1, 0])
        if rows:
            d.node("GatherND", x, rows, keeps=True)


def best(d: SizedDrawing) -> None:
    """The greatest or least few, as many as a constant, a caller or a size says."""
    x = real(d, exact=True)
    axis = open_axis(d, x)
    least = d.least(x, axis)
    flags: dict[str, Any] = {"axis": axis, "largest": d.rng.randint(0, 1), "outputs": 2}
    kind = d.rng.choice(("constant", "given", "size"))
    if kind == "constant":
        k = d.integers([d.rng.randint(1, max(least, 1))])
    elif kind == "given":
        k = d.input_of([np.array([d.rng.randint(1, max(least, 1))]) for _ in d.samples])
    else:
        size = d.node("Shape", x, start=axis, end=axis + 1)
        k = d.node("Min", size, d.integers([d.rng.choice((3, 8))]))
    if k:
        d.node("TopK", x, k, **flags)


def _body(name: str, nodes: list[Any], inputs: list[Any], outputs: list[str]) -> Any:
    infos = [helper.make_empty_tensor_value_info(output) for output in outputs]
    return helper.make_graph(nodes, name, inputs, infos)


def choice(d: SizedDrawing) -> None:
    """A branch by what is computed."""
    x = real(d)
    total = d.node("ReduceSum", x, keepdims=0)
    zero = d.constant(np.zeros((), np.float32), exact=True)
    condition = total and d.node("Greater", total, zero)
    number = len(d.nodes)
    if not condition:
        return
    sides = d.rng.sample(("Neg", "Tanh", "Relu", "Softmax"), 2)
    graphs = {
        f"{side}_branch": _body(
            side, [helper.make_node(operator, [x], [f"{side}_{number}"])], [], [f"{side}_{number}"]
        )
        for side, operator in zip(("then", "else"), sides, strict=True)
    }
    d.node("If", condition, captured=(x,), **graphs)


def scanned(d: SizedDrawing) -> None:
    """A running sum along the first axis, written as a scan."""
    x = real(d, 2)
    number = len(d.nodes)
    state, item, total, out = (f"{name}_{number}" for name in ("state", "item", "total", "out"))
    nodes = [
        helper.make_node("Add", [state, item], [total]),
        helper.make_node(d.rng.choice(("Tanh", "Relu", "Identity")), [total], [out]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (state, item)
    ]
    body = _body("scanned", nodes, inputs, [total, out])
    first = [np.zeros(sample[x].shape[1:], np.float32) for sample in d.samples]
    start = d.input_of(first, exact=True)
    backwards = [d.rng.randint(0, 1)]
    d.node(
        "Scan", start, x, body=body, num_scan_inputs=1, scan_input_directions=backwards, outputs=2
    )


def looped(d: SizedDrawing) -> None:
    """As many steps as an axis is long, or as the caller says."""
    x = real(d)
    number = len(d.nodes)
    step, going, state, more, out = (
        f"{name}_{number}" for name in ("step", "going", "state", "more", "out")
    )
    half = d.constant(np.array(0.5, np.float32), exact=True)
    nodes = [
        helper.make_node("Identity", [going], [more]),
        helper.make_node("Mul", [state, half], [f"{out}_half"]),
        helper.make_node("Add", [f"{out}_half", half], [out]),
    ]
    inputs = [
        helper.make_tensor_value_info(step, TensorProto.INT64, []),
        helper.make_tensor_value_info(going, TensorProto.BOOL, []),
        helper.make_tensor_value_info(state, TensorProto.FLOAT, None),
    ]
    body = _body("looped", nodes, inputs, [more, out])
    if d.rng.random() < 0.5:
        count = d.input_of([np.array(d.rng.randint(0, 4)) for _ in d.samples])
    else:
        axis = open_axis(d, x)
        count = d.node("Squeeze", d.node("Shape", x, start=axis, end=axis + 1))
    if count:
        d.node("Loop", count, "", x, body=body, captured=(half,))


def enlarged(d: SizedDrawing) -> None:
    """An image resized by scales, or to the size of another."""
    x = d.pick(lambda name, v: v.dtype == np.float32 and v.ndim == 4 and bool(d.varies(name)))
    channels = d.rng.choice((1, 3))
    x = x or d.input(d.array([d.extent((1, 2)), channels, *(d.extent((3, 5)) for _ in range(2))]))
    mode = d.rng.choice(("nearest", "linear", "linear", "cubic"))
    coordinates = d.rng.choice(("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"))
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if coordinates != "align_corners" and d.rng.random() < 0.5:  # onnxruntime rounds sizes then
        scales = [1, 1, *(d.rng.choice((0.5, 1, 1.5, 2)) for _ in range(2))]
        d.node("Resize", x, "", d.constant(np.array(scales, np.float32)), **how)
        return
    begin, end = d.node("Shape", x, end=2), d.node("Shape", x, start=2)
    wanted = begin and end and d.node("Mul", end, d.integers([2, d.rng.choice((1, 2))]))
    sizes = wanted and d.node("Concat", begin, wanted, axis=0)
    if sizes:
        smooths = int(mode != "nearest" and d.rng.random() < 0.3)
        d.node("Resize", x, "", "", sizes, antialias=smooths, **how)


def sentence(d: SizedDrawing) -> None:
    """A recurrence over sentences of lengths of their own."""
    operator, gates = d.rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    steps, batch = d.extent((1, 2, 5)), d.extent((1, 2, 3))
    wide, hidden = d.rng.choice((1, 3, 8)), d.rng.choice((1, 3, 4))
    x = d.input(d.array([steps, batch, wide]))
    if not d.least(x, 0):
        return
    weights = [d.constant(d.array([1, gates * hidden, n])) for n in (wide, hidden)]
    lengths = [
        np.array([d.rng.randint(1, s[x].shape[0]) for _ in range(s[x].shape[1])], np.int32)
        for s in d.samples
    ]
    given = [d.input_of(lengths)] if d.rng.random() < 0.6 else []
    d.node(operator, x, *weights, *(["", *given] if given else []), outputs=2, hidden_size=hidden)


def embedded(d: SizedDrawing) -> None:
    """Rows of a table by words that the caller gives, and a mask of them."""
    ids = d.input(np.abs(d.array([d.extent((1, 2)), d.extent()], "int64")))
    table = d.constant(d.array([10, d.rng.choice((1, 4, 8, 16))]))
    d.node("Gather", table, ids, axis=0, keeps=True)
    if d.rng.random() < 0.5:
        mask = d.node("Greater", ids, d.constant(np.array(2)))
        ones = mask and d.node("Cast", mask, to=1, keeps=True)
        if ones:
            d.node("ReduceSum", ones, d.integers([1]), keepdims=d.rng.randint(0, 1), keeps=True)


def contracted(d: SizedDrawing) -> None:
    """Einsum over symbols."""
    b, i, j, k = (d.extent((1, 2, 3, 5)) for _ in range(4))
    equation, left, right = d.rng.choice(
        (
            ("bij,bkj->bik", (b, i, j), (b, k, j)),
            ("bij,bij->bj", (b, i, j), (b, i, j)),
            ("bi,bj->ij", (b, i), (b, j)),
            ("ij,jk->ki", (i, j), (j, k)),
            ("bhi,bhj->bij", (b, k, i), (b, k, j)),
        )
    )
    d.node("Einsum", d.input(d.array(left)), d.input(d.array(right)), equation=equation)


def quantised(d: SizedDrawing) -> None:
    """As dynamic quantisation writes it: scales of what is there."""
    x = real(d, 2)
    wide = d.shape(x)[-1]
    if len(d.shape(x)) - 1 in d.varies(x):
        return
    narrow = d.node("DynamicQuantizeLinear", x, outputs=3)
    if not narrow:
        return
    names = d.nodes[-1].output
    weight = d.constant(d.array([wide, d.rng.choice((3, 8))], "int8"))
    made = d.node("MatMulInteger", names[0], weight, names[2])
    sums_as_floats = made and d.node("Cast", made, to=1)
    if sums_as_floats:
        d.node("Mul", sums_as_floats, names[1])


Kind = Callable[[SizedDrawing], None]

OPEN_KINDS: tuple[tuple[int, Kind], ...] = (
    (4, view), (3, there_and_back), (3, rows_product), (1, turned), (6, part), (4, joined),
    (3, grown), (2, repeated), (4, positions), (2, filled), (2, square_mask), (4, padded),
    (4, picked), (3, picked_elements), (2, chunks), (1, turned_over), (1, number_of_elements),
    (5, attention), (4, product), (6, sums), (3, spread), (5, along), (4, normalised), (3, found),
    (2, best), (2, choice), (2, scanned), (1, looped), (3, enlarged), (2, sentence), (3, embedded),
    (3, contracted), (2, quantised), (3, curve), (1, undefined), (1, bits), (3, whitened),
    (2, sampled), (2, unpooled), (1, transformed), (2, boxes), (1, listed), (2, narrow),
    (3, attended), (1, rotated), (2, square), (2, columns), (2, rows_updated), (1, half_moved),
    (1, deformed), (1, folded),
    *((1, kind) for kind in (*ARITHMETIC, *CONTROL)),
)  # fmt: skip
"""Each with how often it is drawn relative to the others."""

KINDS: tuple[tuple[int, Kind], ...] = (*OPEN_KINDS, *FIXED_KINDS)


def add_node(d: SizedDrawing) -> None:
    """Add a node, or a few, of a drawn kind; nothing where that does not fit."""
    weights, kinds = zip(*KINDS, strict=True)
    d.rng.choices(kinds, weights)[0](d)
