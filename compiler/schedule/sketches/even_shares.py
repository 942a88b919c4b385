"""The default of a sketch for several threads: a more even one where its own leaves one waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.schedule.nest_shape import Numbers
from tunefarm.compiler.schedule.space import ChoiceValue, Sketch

MAX_TIME_RATIO = 0.96  # of the default's time: by less no other choice is taken
ALIKE_TIME_SHARE = 0.02  # of the best time: candidates that differ by less are as good


def evenly_shared(
    sketch: Sketch, threads: int, others: Mapping[str, Sequence[ChoiceValue]]
) -> Sketch:
    """The sketch with `others` as defaults of some choices, if threads share the work better so.

    The time of a candidate is its cycles, times what `waiting` costs. Of those that are alike, the
    one that keeps most of the defaults wins.
    """
    names = [choice.name for choice in sketch.choices]
    defaults = dict(zip(names, sketch.default, strict=True))
    if threads == 1 or "chunks" not in defaults or sketch.shape is None:
        return sketch
    tried = [tuple(dict.fromkeys((defaults[n], *others.get(n, ())))) for n in names]
    shape, numbers = sketch.shape_of(tried)  # the default is the first one
    waits = waiting(shape.pieces, threads)
    cost = shape.cycles * waits
    if max(1.0 / waits[0], cost.min() / cost[0]) >= MAX_TIME_RATIO:
        return sketch
    alike = np.floor(np.log(cost / cost.min()) / ALIKE_TIME_SHARE)
    changed = (numbers > 0).sum(axis=0)
    found = int(np.lexsort((cost, changed, alike))[0])
    chosen = (values[picked] for values, picked in zip(tried, numbers[:, found], strict=True))
    return replace(sketch, default=tuple(chosen))


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
