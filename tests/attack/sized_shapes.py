"""Nodes that ask for sizes and move elements by what they are: views, parts, joins, positions."""

from __future__ import annotations

import numpy as np

from tests.attack.sized_drawing import SizedDrawing

FAR = 2**62


def anything(d: SizedDrawing, rank: int = 1, *, most: int = 4) -> str:
    """A value of the kind that moves take; one with a symbol where there is such a value."""
    found = d.pick(lambda name, value: rank <= value.ndim <= most and bool(d.varies(name)))
    return found or d.floats(rank)


def real(d: SizedDrawing, rank: int = 1, *, exact: bool = False) -> str:
    """A float32 value with a symbol, if there is one."""
    found = d.pick(
        lambda name, value: (
            value.dtype == np.float32
            and rank <= value.ndim <= 4
            and bool(d.varies(name))
            and (name in d.exact or not exact)
        )
    )
    return found or d.input(d.array([d.extent() for _ in range(rank)], exact=exact), exact=exact)


def open_axis(d: SizedDrawing, name: str) -> int:
    """An axis of the value whose size varies, any if none does."""
    return d.rng.choice(d.varies(name) or list(range(len(d.shape(name)))))


def size_of(d: SizedDrawing, name: str, axis: int) -> str:
    """A vector of one size of the value, as it is or computed further."""
    size = d.node("Shape", name, start=axis, end=axis + 1)
    match d.rng.choice(("", "", "half", "less", "rest", "twice")):
        case "half":
            return d.node("Div", size, d.integers([2]))
        case "less":
            return d.node("Sub", size, d.integers([1]))
        case "rest":
            return d.node("Mod", size, d.integers([d.rng.choice((2, 3, 4))]))
        case "twice":
            return d.node("Mul", size, d.integers([2]))
    return size


def view(d: SizedDrawing) -> None:
    """A reshape that keeps some axes, with 0 and -1."""
    x = anything(d, 2)
    shape = d.shape(x)
    at = d.rng.randrange(len(shape) - 1)
    wanted = [0] * at + [-1]
    varies = d.varies(x)
    rest = range(at + 2, len(shape))
    if not any(axis in varies for axis in rest):
        d.node("Reshape", x, d.integers([*wanted, *(shape[a] for a in rest)]), keeps=True)
    elif at == 0:
        d.node("Flatten", x, axis=2, keeps=True)


def there_and_back(d: SizedDrawing) -> None:
    """Flat, changed there, and of the shape that it was."""
    x = anything(d, 2)
    if d.values[x].dtype.kind != "f":
        return
    whole = d.node("Shape", x)
    flat = d.node("Reshape", x, d.integers([-1]), keeps=True)
    for operator in d.rng.choice((("Abs",), ("Softmax",), ("Neg", "Relu"))):
        flat = flat and d.node(operator, flat, keeps=operator != "Softmax")
    if flat and whole:
        d.node("Reshape", flat, whole, allowzero=1, keeps=True)


def rows_product(d: SizedDrawing) -> None:
    """A product of the rows of all sentences, and the sentences again."""
    x = anything(d, 3)
    wide = d.shape(x)[-1]
    if d.values[x].dtype != np.float32 or len(d.shape(x)) - 1 in d.varies(x):
        return
    other = d.rng.choice((1, 3, 8, 17))
    rows = d.node("Reshape", x, d.integers([-1, wide]), keeps=True)
    made = rows and d.node("MatMul", rows, d.constant(d.array([wide, other])))
    begin = d.node("Shape", x, end=len(d.shape(x)) - 1)
    if made and begin:
        shape = d.node("Concat", begin, d.integers([other]), axis=0)
        d.node("Reshape", made, shape, allowzero=1)


def turned(d: SizedDrawing) -> None:
    """Under the shape with two sizes exchanged: elements stay in order, rows do not."""
    x = anything(d, 2)
    rank = len(d.shape(x))
    order = d.rng.sample(range(rank), rank)
    shape = d.node("Gather", d.node("Shape", x), d.integers(order), axis=0)
    d.node("Reshape", x, shape, allowzero=1, keeps=True)


def part(d: SizedDrawing) -> None:
    """A slice up to, or from, a size."""
    x = anything(d)
    axis = open_axis(d, x)
    kind = d.rng.choice(("until", "from", "last", "but last", "every", "reverse", "given"))
    zero, far, one = d.integers([0]), d.integers([FAR]), d.integers([1])
    axes = d.integers([d.rng.choice((axis, axis - len(d.shape(x))))])
    match kind:
        case "until":
            size = size_of(d, d.rng.choice((x, anything(d))), axis)
            if size:
                d.node("Slice", x, zero, size, axes, keeps=True)
        case "from":
            size = size_of(d, x, axis)
            if size:
                d.node("Slice", x, size, far, axes, keeps=True)
        case "last":
            d.node("Slice", x, d.integers([-d.rng.randint(1, 3)]), far, axes, one, keeps=True)
        case "but last":
            ends = d.integers([-d.rng.randint(1, 3)])
            d.node("Slice", x, d.integers([d.rng.randint(0, 2)]), ends, axes, keeps=True)
        case "every":
            step = d.integers([d.rng.choice((2, 3))])
            d.node("Slice", x, d.integers([d.rng.randint(0, 1)]), far, axes, step, keeps=True)
        case "reverse":
            step = d.integers([-d.rng.choice((1, 1, 2))])
            d.node("Slice", x, d.integers([-1]), d.integers([-FAR]), axes, step, keeps=True)
        case "given":  # starts that the caller gives
            starts = [np.array([d.rng.randint(0, 3)]) for _ in d.samples]
            d.node("Slice", x, d.input_of(starts), far, axes, keeps=True)


def joined(d: SizedDrawing) -> None:
    """With itself, or with another of its kind, along an axis of either sort."""
    x = anything(d)
    axis = d.rng.choice((open_axis(d, x), d.rng.randrange(len(d.shape(x)))))
    others = d.pick(
        lambda name, value: (
            value.dtype == d.values[x].dtype and value.ndim == d.values[x].ndim and name != x
        )
    )
    parts = [x, others or x] if d.rng.random() < 0.6 else [x, x]
    d.rng.shuffle(parts)
    d.node("Concat", *parts, axis=axis, keeps=True)


def grown(d: SizedDrawing) -> None:
    """Expanded to the shape of another, or to computed sizes."""
    x = anything(d, 0)
    like = anything(d)
    shape = d.node("Shape", like)
    if d.rng.random() < 0.5:
        last = d.shape(x)[-1:] or (1,)
        x = d.like(x, [1] * d.rng.randint(0, 1) + [d.rng.choice((1, *last))])
    d.node("Expand", x, shape, keeps=True)


def repeated(d: SizedDrawing) -> None:
    x = anything(d)
    repeats = [1] * len(d.shape(x))
    repeats[open_axis(d, x)] = d.rng.choice((2, 3))
    d.node("Tile", x, d.integers(repeats), keeps=True)


def positions(d: SizedDrawing) -> None:
    """0 to the size of an axis, added to it, or rows of a table by them."""
    x = anything(d, 1)
    rank, axis = len(d.shape(x)), open_axis(d, x)
    size = d.node("Squeeze", d.node("Shape", x, start=axis, end=axis + 1))
    zero, one = (d.constant(np.array(number)) for number in (0, 1))
    steps = size and d.node("Range", zero, size, one)
    if not steps:
        return
    if d.rng.random() < 0.4:
        table = d.constant(d.array([80, d.rng.choice((1, 4, 8))]))
        d.node("Gather", table, steps, axis=0, keeps=True)
        return
    typed = d.node("CastLike", steps, x, keeps=True)
    at = [1] * (rank - axis - 1)
    shaped = typed and d.node("Reshape", typed, d.integers([-1, *at]), keeps=True)
    if shaped:
        d.node(d.rng.choice(("Add", "Sub", "Mul", "Less")), x, shaped)


def filled(d: SizedDrawing) -> None:
    """A tensor of one number as large as another, with a triangle cut off at times."""
    x = anything(d, 2)
    made = d.node("ConstantOfShape", d.node("Shape", x))
    if made and d.rng.random() < 0.5:
        made = d.node("Add", made, d.constant(np.ones((), np.float32), exact=True), keeps=True)
        by = d.constant(np.array(d.rng.randint(-2, 2)))
        made = made and d.node("Trilu", made, by, upper=d.rng.randint(0, 1), keeps=True)
    if made and d.values[x].dtype == np.float32:
        d.node(d.rng.choice(("Add", "Mul", "Max")), x, made, keeps=True)


def square_mask(d: SizedDrawing) -> None:
    """Positions of an axis compared with each other, as causal masks are spelled."""
    x = anything(d, 2)
    axis = open_axis(d, x)
    size = d.node("Squeeze", d.node("Shape", x, start=axis, end=axis + 1))
    zero, one = (d.constant(np.array(number)) for number in (0, 1))
    row = size and d.node("Range", zero, size, one)
    column = row and d.node("Unsqueeze", row, d.integers([1]))
    mask = column and d.node(d.rng.choice(("LessOrEqual", "Greater", "Less")), row, column)
    if mask and d.rng.random() < 0.7:
        low = d.constant(np.array(-9.0, np.float32))
        d.node("Where", mask, d.constant(np.zeros((), np.float32)), low)


def padded(d: SizedDrawing) -> None:
    """Up to a multiple, or by a width that the caller gives."""
    x = anything(d)
    rank, axis = len(d.shape(x)), open_axis(d, x)
    if d.values[x].dtype.kind not in "fi":
        return
    value = d.constant(np.array(1, d.values[x].dtype), exact=True)
    if d.rng.random() < 0.5:
        wanted = d.integers([d.rng.choice((2, 4, 8))])
        size = d.node("Shape", x, start=axis, end=axis + 1)
        over = size and d.node("Mod", size, wanted)
        short = over and d.node("Mod", d.node("Sub", wanted, over), wanted)
        amounts = short and d.node("Concat", d.integers([0]), short, axis=0)
        if amounts:
            d.node("Pad", x, amounts, value, d.integers([axis]), mode="constant", keeps=True)
        return
    widths = [0] * (2 * rank)
    widths[axis], widths[axis + rank] = d.rng.randint(0, 2), d.rng.randint(0, 2)
    mode = d.rng.choice(("constant", "reflect", "edge", "wrap"))
    d.node("Pad", x, d.integers(widths), value, mode=mode, keeps=True)


def picked(d: SizedDrawing) -> None:
    """Positions that are there at all sizes; from an end or the other, or of another value."""
    x = anything(d)
    axis = open_axis(d, x)
    least = d.least(x, axis)
    if not least:
        return
    shape = [d.extent((1, 2, 5)) for _ in range(d.rng.choice((0, 1, 1, 2)))]
    low = -least if d.rng.random() < 0.5 else 0
    taken = np.array([d.rng.randrange(low, least) for _ in range(int(np.prod(shape)))], np.int64)
    make = d.rng.choice((d.input, d.constant))
    d.node("Gather", x, make(taken.reshape(shape)), axis=axis, keeps=True)


def picked_elements(d: SizedDrawing) -> None:
    x = anything(d, 1, most=3)
    axis = open_axis(d, x)
    least = d.least(x, axis)
    if least:
        shape = [1 if n == axis else extent for n, extent in enumerate(d.shape(x))]
        shape[axis] = d.rng.choice((1, 3, d.shape(x)[axis]))
        rng = np.random.default_rng(d.rng.getrandbits(32))
        indices = d.input(rng.integers(-least, least, shape))
        kind = d.rng.choice(("GatherElements", "GatherElements", "ScatterElements"))
        if kind == "GatherElements":
            d.node(kind, x, indices, axis=axis, keeps=True)
        elif d.values[x].dtype == np.float32:
            updates = d.input(d.array(shape, exact=True), exact=True)
            d.node(kind, x, indices, updates, axis=axis, reduction=d.rng.choice(("add", "max")))


def chunks(d: SizedDrawing) -> None:
    """An axis in equal parts, one after the other, or split by sizes that are computed."""
    x = anything(d)
    axis = d.rng.randrange(len(d.shape(x)))
    count = d.rng.choice((2, 3))
    parts = d.node("Split", x, axis=axis, num_outputs=count, outputs=count, keeps=True)
    if parts:
        d.node("Concat", d.nodes[-1].output[1], parts, axis=axis, keeps=True)


def turned_over(d: SizedDrawing) -> None:
    """Sentences backwards, each of the length that the caller gives."""
    x = anything(d, 2)
    if {0, 1} <= set(range(len(d.shape(x)))) and d.least(x, 0):
        lengths = [
            np.array([d.rng.randint(0, sample[x].shape[0]) for _ in range(sample[x].shape[1])])
            for sample in d.samples
        ]
        d.node("ReverseSequence", x, d.input_of(lengths), time_axis=0, batch_axis=1, keeps=True)


def number_of_elements(d: SizedDrawing) -> None:
    x = anything(d)
    size = d.node("Size", x)
    if size and d.values[x].dtype.kind == "f":
        one = d.node("CastLike", size, x)
        more = one and d.node("Add", one, d.constant(np.ones((), d.values[x].dtype)))
        if more:
            d.node("Div", x, more)
