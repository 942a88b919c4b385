"""Nodes that move elements: views, slices, joins, paddings, gathers and scatters."""

from __future__ import annotations

import math

import numpy as np

from tests.attack.drawn_model import Drawing


def _any(d: Drawing, rank: int = 1) -> str:
    return d.pick(lambda _, value: value.ndim >= rank) or d.floats(rank)


def transpose(d: Drawing) -> None:
    x = _any(d)
    rank = len(d.shape(x))
    d.node("Transpose", x, perm=d.rng.sample(range(rank), rank), keeps=True)


def reshape(d: Drawing) -> None:
    x = _any(d)
    shape = list(d.shape(x))
    kind = d.rng.choice(("merge", "flat", "unsqueeze", "squeeze", "flatten"))
    if kind == "merge" and len(shape) > 1:
        at = d.rng.randrange(len(shape) - 1)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
        d.node("Reshape", x, d.integers(shape), keeps=True)
    elif kind == "unsqueeze" and len(shape) < 4:
        d.node("Unsqueeze", x, d.integers([d.rng.randint(0, len(shape))]), keeps=True)
    elif kind == "squeeze" and 1 in shape:
        d.node("Squeeze", x, d.integers([shape.index(1)]), keeps=True)
    elif kind == "flatten":
        d.node("Flatten", x, axis=d.rng.randint(0, len(shape)), keeps=True)
    else:
        d.node("Reshape", x, d.integers([-1]), keeps=True)


def slices(d: Drawing) -> None:
    x = _any(d)
    axis = d.rng.randrange(len(d.shape(x)))
    extent = d.shape(x)[axis]
    step = d.rng.choice((1, 1, 2, 3, -1, -2))
    start = d.rng.randrange(extent)
    end = -(2**31) if step < 0 else d.rng.choice((2**31, extent))
    bounds = [d.integers([value]) for value in (start, end, axis, step)]
    d.node("Slice", x, *bounds, keeps=True)


def split(d: Drawing) -> None:
    x = _any(d)
    axis = d.rng.randrange(len(d.shape(x)))
    extent = d.shape(x)[axis]
    if extent > 1:
        first = d.rng.randint(1, extent - 1)
        sizes = d.integers([first, extent - first])
        d.node("Split", x, sizes, outputs=2, axis=axis, keeps=True)


def concat(d: Drawing) -> None:
    x = _any(d)
    axis = d.rng.randrange(len(d.shape(x)))
    shape = list(d.shape(x))
    shape[axis] = d.extent()
    parts = [x, d.like(x, shape)]
    parts += [x] if d.rng.random() < 0.2 else []
    d.rng.shuffle(parts)
    d.node("Concat", *parts, axis=axis, keeps=True)


def expand(d: Drawing) -> None:
    x = _any(d, 0)
    shape = [d.rng.choice((1, 2, 3)) if n == 1 else d.rng.choice((1, n)) for n in d.shape(x)]
    if d.rng.random() < 0.5:
        d.node("Expand", x, d.integers([*d.rng.choice(([], [2])), *shape] or [1]), keeps=True)
    elif shape:
        d.node("Tile", x, d.integers(d.rng.choice((1, 2)) for _ in shape), keeps=True)


def pad(d: Drawing) -> None:
    x = d.floats(1)
    mode = d.rng.choice(("constant", "reflect", "edge", "wrap"))
    widths = [d.rng.randint(0, min(2, n - 1)) for n in d.shape(x) * 2]
    if mode == "constant" and d.rng.random() < 0.3:
        widths = [d.rng.randint(-1, 2) for _ in widths]
    value = d.constant(np.array(0.5, d.values[x].dtype), exact=True)
    d.node("Pad", x, d.integers(widths), value, mode=mode, keeps=True)


def gather(d: Drawing) -> None:
    x = _any(d)
    axis = d.rng.randrange(len(d.shape(x)))
    extent = d.shape(x)[axis]
    shape = [d.rng.choice((1, 2, 5)) for _ in range(d.rng.choice((0, 1, 1, 2)))]
    if d.rng.random() < 0.4:
        shape = [d.rng.choice((1, n)) for n in d.shape(x)]
        kind = "GatherElements"
    else:
        kind = "Gather"
    count = math.prod(shape)
    taken = [d.rng.randrange(-extent, extent) for _ in range(count)]
    make = d.rng.choice((d.input, d.constant))
    d.node(kind, x, make(np.array(taken, np.int64).reshape(shape)), axis=axis, keeps=True)


def scatter(d: Drawing) -> None:
    x = d.floats(1)
    shape = d.shape(x)
    rows = d.rng.sample(range(shape[0]), d.rng.randint(1, shape[0]))
    make = d.rng.choice((d.input, d.constant))
    if d.rng.random() < 0.5:
        indices = make(np.array(rows, np.int64).reshape(-1, 1))
        d.node("ScatterND", x, indices, d.like(x, [len(rows), *shape[1:]]), keeps=True)
    else:
        column = np.array(rows, np.int64).reshape(-1, *(1,) * (len(shape) - 1))
        indices = make(np.broadcast_to(column, (len(rows), *shape[1:])).copy())
        d.node("ScatterElements", x, indices, d.like(x, [len(rows), *shape[1:]]), keeps=True)


def triangle(d: Drawing) -> None:
    x = d.floats(2)
    by = d.constant(np.array(d.rng.randint(-2, 2), np.int64))
    d.node("Trilu", x, by, upper=d.rng.randint(0, 1), keeps=True)


def one_hot(d: Drawing) -> None:
    indices = d.input(d.array([d.extent(), d.rng.choice((1, 3))], "int64"))
    depth = d.constant(np.array(d.rng.choice((3, 10)), np.int64))
    values = d.constant(np.array([-0.5, 2.0], np.float32), exact=True)
    d.node("OneHot", indices, depth, values, axis=d.rng.choice((-1, 0, 1)), keeps=True)
