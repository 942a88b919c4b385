"""Scatters: what is written, or joined, at positions that are read from memory.

hits[i, c]   = combiner over u < 64 of select(position(i, u) == c, value(i, u), neutral)
y[i, c]      = combiner(data[i, c], hits[i, c])

or, where the last write stays,

hits[i, c]   = max over u < 64 of select(position(i, u) == c, u, -1)
y[i, c]      = select(hits[i, c] < 0, data[i, c], value(i, hits[i, c]))

As expressions these are searches, which compare each element with each update; walked along the
updates they take one step for each. This is the one place that knows the forms.
"""

from __future__ import annotations

from tunefarm.compiler.expr.combiners import COMBINERS, neutral_element
from tunefarm.compiler.expr.nodes import (
    Binary,
    Const,
    Expr,
    Index,
    Load,
    Select,
    binary,
    cast,
    index,
    integer,
    select,
)
from tunefarm.compiler.expr.walk import axes_of, loads, transform
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

MISSED = -1
"""The number of an element's last update where it has none."""

NOWHERE = -1
"""The position of what is written nowhere."""


@frozen
class SearchedUpdates:
    """A reduction over `updates` that takes `value` where `position` is that along `axis`.

    An element that no update has is `missed`.
    """

    axis: str
    updates: Axis
    position: Expr
    value: Expr
    missed: Const


@frozen
class Scatter:
    """`seed` in all of `output`, then updates in order: at `position` along `axis` the `value`.

    It is joined with what is there by `combiner`, or replaces it if that is "". Positions outside
    of the axis are left out. Expressions are over the output's axes, `position` and `value` over
    that of the updates instead of `axis`.
    """

    output: Stage
    seed: Expr
    axis: str
    updates: Axis
    position: Expr
    value: Expr
    combiner: str


def searched_updates(stage: Stage) -> SearchedUpdates | None:
    """The stage as a search for an element's updates, None if it is something else."""
    body = stage.body
    if len(stage.reduce_axes) != 1 or stage.accumulator is not None or not isinstance(body, Select):
        return None
    (updates,), found = stage.reduce_axes, body.condition
    if not isinstance(found, Binary) or found.op != "eq" or not isinstance(found.right, Index):
        return None
    axis, position = found.right.name, found.left
    if axis not in [item.name for item in stage.axes] or not loads(position):
        return None
    if axis in axes_of(position) | axes_of(body.then) or not isinstance(body.otherwise, Const):
        return None
    is_neutral = body.otherwise == neutral_element(stage.combiner, body.dtype)
    if not is_neutral and not _counts(stage, body, updates):
        return None
    return SearchedUpdates(axis, updates, position, body.then, body.otherwise)


def scatter_of(kernel: FusedKernel) -> Scatter | None:
    """The kernel as a scatter, None if it is something else."""
    if len(kernel.stages) != 2:
        return None
    hits, output = kernel.stages
    found = searched_updates(hits)
    if found is None or output.reduce_axes or not _is_part(hits, output):
        return None
    read = Load(hits.dtype, hits.name, tuple(index(axis.name) for axis in hits.axes))
    if _counts(hits, hits.body, found.updates):
        return _writes(output, found, read)
    body = output.body
    if not isinstance(body, Binary) or body.op != COMBINERS[hits.combiner].operation:
        return None
    if body.right != read or any(load.buffer == hits.name for load in loads(body.left)):
        return None
    position, value, joined = found.position, found.value, hits.combiner
    return Scatter(output, body.left, found.axis, found.updates, position, value, joined)


def place_of(last: Expr) -> Expr:
    """The position among the updates of an element's last one, 0 where there is none."""
    return binary("max", cast(DType.I64, last), integer(0))


def last_write(last: Expr, data: Expr, taken: Expr) -> Expr:
    """What an element is, given the number of its last update: that one, or the data."""
    return select(binary("lt", last, Const(last.dtype, 0)), data, taken)


def _writes(output: Stage, found: SearchedUpdates, last: Load) -> Scatter | None:
    """The scatter whose last writes stay, if the output takes them."""
    body, place = output.body, place_of(last)
    if not isinstance(body, Select) or body != last_write(last, body.then, body.otherwise):
        return None
    updates = index(found.updates.name)
    value = transform(body.otherwise, lambda node: updates if node == place else None)
    if any(load.buffer == last.buffer for side in (body.then, value) for load in loads(side)):
        return None
    if found.axis in axes_of(value):
        return None
    return Scatter(output, body.then, found.axis, found.updates, found.position, value, "")


def _counts(stage: Stage, body: Expr, updates: Axis) -> bool:
    """The stage finds the number of an element's last update."""
    if stage.combiner != "max" or not isinstance(body, Select):
        return False
    numbered = cast(stage.dtype, index(updates.name))
    return body.then == numbered and body.otherwise == Const(stage.dtype, MISSED)


def _is_part(hits: Stage, output: Stage) -> bool:
    """The hits are found for all elements along axes of the output."""
    return set(hits.axes) <= set(output.axes)
