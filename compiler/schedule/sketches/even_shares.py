"""The default of a sketch: a cheaper one than by its rules, and for threads a more even one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.schedule.nest_shape import NestShape, Numbers
from tunefarm.compiler.schedule.space import ChoiceValue, Sketch

MAX_TIME_RATIO = 0.96  # of the default's time: by less no other choice is taken
ALIKE_TIME_SHARE = 0.02  # of the best time: candidates that differ by less are as good


def cheapest(
    sketch: Sketch,
    others: Mapping[str, Sequence[ChoiceValue]],
    cost: Callable[[NestShape], Numbers],
) -> Sketch:
    """The sketch with `others` as defaults of some choices, if they cost clearly less.

    Of those that are alike, the one that keeps most of the defaults wins.
    """
    if sketch.shape is None:
        return sketch
    tried = [
        tuple(dict.fromkeys((default, *others.get(choice.name, ()))))
        for choice, default in zip(sketch.choices, sketch.default, strict=True)
    ]
    if all(len(values) == 1 for values in tried):
        return sketch
    shape, numbers = sketch.shape_of(tried)  # the default is the first one
    costs = cost(shape)
    if costs.min() >= MAX_TIME_RATIO * costs[0]:
        return sketch
    alike = np.floor(np.log(costs / costs.min()) / ALIKE_TIME_SHARE)
    changed = (numbers > 0).sum(axis=0)
    found = int(np.lexsort((costs, changed, alike))[0])
    chosen = (values[picked] for values, picked in zip(tried, numbers[:, found], strict=True))
    return replace(sketch, default=tuple(chosen))


def evenly_shared(
    sketch: Sketch, threads: int, others: Mapping[str, Sequence[ChoiceValue]]
) -> Sketch:
    """The sketch with `others` as defaults of some choices, if threads share the work better so."""
    if MAX_TIME_RATIO * default_waiting(sketch, threads) <= 1.0:
        return sketch
    return cheapest(sketch, others, lambda shape: shape.cycles * waiting(shape.pieces, threads))


def default_waiting(sketch: Sketch, threads: int) -> float:
    """What `waiting` is of a sketch's default schedule; 1 where threads share nothing of it."""
    names = [choice.name for choice in sketch.choices]
    if threads == 1 or "chunks" not in names or sketch.shape is None:
        return 1.0
    shape, _ = sketch.shape_of([(value,) for value in sketch.default])
    return float(waiting(shape.pieces, threads)[0])


def even_part(extent: int, most: int) -> int:
    """The size of the parts of an extent that are as few as parts of `most` are, and as even."""
    return -(-extent // -(-extent // most))


def waiting(pieces: Numbers | int, threads: int) -> Numbers:
    """The time of so many equal pieces, over that of as much work that threads share evenly."""
    return np.asarray(np.ceil(pieces / threads) * threads / pieces, np.float64)
