"""Arithmetic on sizes, as exporters spell it, and what takes the numbers that come out."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.attack.sized_drawing import SizedDrawing
from tests.attack.sized_shapes import anything, open_axis, real

_FACTORS = (0.5, 1.5, 2.0, 0.25, 1 / 3, 0.7)
_MOST = (3, 7, 12)


def leaf(d: SizedDrawing) -> str:
    """A vector of one number: the size of an axis, or a constant."""
    if d.rng.random() < 0.2:
        return d.integers([d.rng.choice((0, 1, 2, 3, 5, 8))])
    x = d.pick(lambda name, value: bool(d.varies(name)))
    x = x or d.input(d.array([d.rng.choice(d.symbols).high, d.extent()]))
    axis = open_axis(d, x)
    return d.node("Shape", x, start=axis, end=axis + 1)


def number(d: SizedDrawing, depth: int = 2) -> str:
    """A number that is computed of sizes; "" where something does not fit."""
    if depth == 0 or d.rng.random() < 0.25:
        return leaf(d)
    left = number(d, depth - 1)
    kind = d.rng.choice(_WAYS)
    if not left:
        return ""
    if kind in ("Half", "Scaled", "Even", "Clip", "Neg", "Abs", "Squared", "Mod"):
        return _of_one(d, kind, left)
    right = number(d, depth - 1)
    if not right:
        return ""
    if kind == "Where":
        flag = d.node(d.rng.choice(("Less", "Equal", "GreaterOrEqual")), left, right)
        return d.node("Where", flag, *d.rng.sample((left, right, number(d, 0) or left), 2))
    if kind == "Counted":
        flag = d.node(d.rng.choice(("Greater", "LessOrEqual")), left, right)
        more = flag and d.node("Cast", d.node("Not", flag), to=7)
        return more and d.node("Add", left, more)
    if kind == "Product":
        return d.node("ReduceProd", d.node("Concat", left, right, axis=0), keepdims=1)
    if kind == "Div":
        one = d.integers([1])
        return d.node("Div", left, d.node("Max", right, one))
    return d.node(kind, left, right)


_WAYS = """Half Scaled Even Clip Neg Abs Squared Mod Where Counted Product Div Add Add Sub Sub Mul
    Max Min""".split()


def _of_one(d: SizedDrawing, kind: str, left: str) -> str:
    match kind:
        case "Half":
            return d.node("Div", left, d.integers([d.rng.choice((2, 3, -2))]))
        case "Scaled":
            floats = d.node("Cast", left, to=1)
            by = d.constant(np.array(d.rng.choice(_FACTORS), np.float32))
            scaled = floats and d.node(d.rng.choice(("Mul", "Div")), floats, by)
            rounded = scaled and d.node(d.rng.choice(("Floor", "Ceil", "Identity")), scaled)
            return rounded and d.node("Cast", rounded, to=7)
        case "Even":
            odd = d.node("Mod", left, d.integers([2]))
            return odd and d.node("Add", left, odd)
        case "Clip":
            low, high = d.rng.choice(((0, 5), (1, 9), (-2, 4)))
            return d.node("Clip", left, *(d.constant(np.array(n)) for n in (low, high)))
        case "Squared":
            return d.node("Pow", left, d.integers([2]))
        case "Mod":
            made = d.integers([d.rng.choice((2, 3, 4))])
            return d.node("Mod", left, made, fmod=d.rng.randint(0, 1))
    return d.node(kind, left)


def count(d: SizedDrawing, least: int = 1) -> str:
    """A number between bounds that keep what has so many elements small."""
    found = number(d)
    low, high = d.integers([least]), d.integers([d.rng.choice(_MOST)])
    bounded = found and d.node("Min", d.node("Max", found, low), high)
    return bounded if bounded else d.node("Max", leaf(d), low)


def numbered_slice(d: SizedDrawing) -> None:
    """Between two numbers of either sign."""
    x = anything(d)
    axis = d.integers([open_axis(d, x)])
    start = d.rng.choice((number(d), d.integers([0])))
    end = d.rng.choice((number(d), d.integers([2**62])))
    step = d.integers([d.rng.choice((1, 1, 1, 2, -1, -2))])
    if start and end:
        d.node("Slice", x, start, end, axis, step, keeps=True)


def numbered_fill(d: SizedDrawing) -> None:
    """A tensor of one number, or a row as often as a number says."""
    first, second = count(d), count(d)
    if not (first and second):
        return
    shape = d.node("Concat", first, second, axis=0)
    if d.rng.random() < 0.5:
        d.node("ConstantOfShape", shape)
        return
    row = d.input(d.array([1], exact=True), exact=True)
    d.node("Expand", row, shape, keeps=True)


def numbered_range(d: SizedDrawing) -> None:
    """From a number to another, of integers or of floats."""
    high = d.node("Squeeze", count(d))
    if d.rng.random() < 0.4:  # of which some may have no element, which is an error
        high = high and d.node("Cast", high, to=1)
        low, step = (d.constant(np.array(n, np.float32)) for n in (0, d.rng.choice((0.5, 1))))
    else:
        low = d.node("Squeeze", number(d, 1))
        step = d.constant(np.array(d.rng.choice((1, 1, 2, -1))))
    if low and high:
        d.node("Range", low, high, step)


def numbered_tile(d: SizedDrawing) -> None:
    x = anything(d)
    repeats = [d.integers([1]) for _ in d.shape(x)]
    few = d.node("Min", count(d), d.integers([3]))
    repeats[open_axis(d, x)] = few
    if few:
        d.node("Tile", x, d.node("Concat", *repeats, axis=0), keeps=True)


def numbered_pad(d: SizedDrawing) -> None:
    """More at both ends, or less at one."""
    x = anything(d)
    if d.values[x].dtype.kind not in "fi":
        return
    begin, end = (d.rng.choice((count(d, 0), number(d, 1))) for _ in range(2))
    value = d.constant(np.array(1, d.values[x].dtype), exact=True)
    amounts = begin and end and d.node("Concat", begin, end, axis=0)
    if amounts:
        mode = d.rng.choice(("constant", "edge"))
        d.node("Pad", x, amounts, value, d.integers([open_axis(d, x)]), mode=mode, keeps=True)


def numbered_places(d: SizedDrawing) -> None:
    """The element before a number, and those before and behind."""
    x = anything(d)
    axis = open_axis(d, x)
    size = d.node("Shape", x, start=axis, end=axis + 1)
    place = d.node("Sub", d.node("Min", count(d), size), d.integers([1]))
    if d.rng.random() < 0.3:
        place = d.node("Neg", place)
    if place:
        d.node("Gather", x, place, axis=axis, keeps=True)


def numbered_parts(d: SizedDrawing) -> None:
    """An axis split where a number says."""
    x = anything(d)
    axis = open_axis(d, x)
    size = d.node("Shape", x, start=axis, end=axis + 1)
    first = d.node("Min", count(d), size)
    rest = first and d.node("Sub", size, first)
    sizes = rest and d.node("Concat", *d.rng.sample((first, rest), 2), axis=0)
    if sizes:
        d.node("Split", x, sizes, axis=axis, outputs=2, keeps=True)


def numbered_triangle(d: SizedDrawing) -> None:
    x = real(d, 2)
    k = number(d)
    if k:
        d.node("Trilu", x, d.node("Squeeze", k), upper=d.rng.randint(0, 1), keeps=True)


def numbered_best(d: SizedDrawing) -> None:
    """As many as a number says, if there are so many."""
    x = real(d, exact=True)
    axis = open_axis(d, x)
    k = d.node("Min", count(d), d.node("Shape", x, start=axis, end=axis + 1))
    if k:
        d.node("TopK", x, k, axis=axis, largest=d.rng.randint(0, 1), outputs=2)


def numbered_image(d: SizedDrawing) -> None:
    """An image of as many rows and columns as numbers say."""
    x = d.pick(lambda name, v: v.dtype == np.float32 and v.ndim == 4 and v.shape[2] > 1)
    x = x or d.input(d.array([d.extent((1, 2)), 2, *(d.extent((3, 5)) for _ in range(2))]))
    begin, sizes = d.node("Shape", x, end=2), [count(d), count(d)]
    if not (begin and all(sizes)):
        return
    mode = d.rng.choice(("nearest", "linear", "cubic"))
    smooths = int(mode != "nearest" and d.rng.random() < 0.3)
    coordinates = d.rng.choice(("half_pixel", "asymmetric"))
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    wanted = d.node("Concat", begin, *sizes, axis=0)
    if wanted:
        d.node("Resize", x, "", "", wanted, antialias=smooths, **how)


def numbered_choice(d: SizedDrawing) -> None:
    """A branch by how two numbers compare, with results of other sizes."""
    x, left, right = real(d), number(d), number(d)
    flag = left and right and d.node(d.rng.choice(("Less", "Equal")), left, right)
    condition = flag and d.node("Squeeze", flag)
    if not condition:
        return
    at, axis = len(d.nodes), open_axis(d, x)
    graphs = {
        f"{side}_branch": helper.make_graph(
            [made], side, [], [helper.make_empty_tensor_value_info(made.output[0])]
        )
        for side, made in (
            ("then", helper.make_node("Concat", [x, x], [f"then_{at}"], axis=axis)),
            ("else", helper.make_node("Neg", [x], [f"else_{at}"])),
        )
    }
    d.node("If", condition, captured=(x,), keeps=True, **graphs)


def rejoined(d: SizedDrawing) -> None:
    """Two axes as one under their product, that one in blocks, and as it was."""
    x = anything(d, 2)
    at = d.rng.randrange(len(d.shape(x)) - 1)
    rank = len(d.shape(x))
    whole = d.node("Shape", x)
    first, second = (d.node("Shape", x, start=at + n, end=at + n + 1) for n in (0, 1))
    together = d.node("Mul", first, second)
    parts = [together]
    if at:
        parts.insert(0, d.node("Shape", x, end=at))
    if at + 2 < rank:
        parts.append(d.node("Shape", x, start=at + 2))
    flat = d.node("Reshape", x, d.node("Concat", *parts, axis=0), allowzero=1, keeps=True)
    if flat and d.rng.random() < 0.7:
        changed = d.node(d.rng.choice(("Neg", "Relu")), flat, keeps=True) or flat
        d.node("Reshape", changed, whole, allowzero=1, keeps=True)


def windows(d: SizedDrawing) -> None:
    """An axis padded to whole windows, cut into them, and what is there again."""
    x = real(d, 2)
    axis, wide, rank = open_axis(d, x), d.rng.choice((2, 3, 4)), len(d.shape(x))
    size, by = d.node("Shape", x, start=axis, end=axis + 1), d.integers([wide])
    short = d.node("Mod", d.node("Neg", size), by)
    amounts = d.node("Concat", d.integers([0]), short, axis=0)
    padded = d.node("Pad", x, amounts, "", d.integers([axis]), keeps=True)
    if not padded:
        return
    long = d.node("Shape", padded, start=axis, end=axis + 1)
    shape = [d.node("Shape", x, end=axis)] if axis else []
    behind = [d.node("Shape", x, start=axis + 1)] if axis + 1 < rank else []
    split = d.node("Concat", *shape, d.node("Div", long, by), by, *behind, axis=0)
    apart = d.node("Reshape", padded, split, allowzero=1, keeps=True)
    inner = apart and d.node("ReduceMax", apart, d.integers([axis + 1]), keepdims=1)
    centred = inner and d.node("Sub", apart, inner)
    whole = centred and d.node("Concat", *shape, long, *behind, axis=0)
    back = whole and d.node("Reshape", centred, whole, allowzero=1)
    if back:
        d.node("Slice", back, d.integers([0]), size, d.integers([axis]))


ARITHMETIC = (
    numbered_slice,
    numbered_fill,
    numbered_range,
    numbered_tile,
    numbered_pad,
    numbered_places,
    numbered_parts,
    numbered_triangle,
    numbered_best,
    numbered_image,
    numbered_choice,
    rejoined,
    windows,
)
"""Kinds of nodes, as those of `tests.attack.sized_kinds`."""
