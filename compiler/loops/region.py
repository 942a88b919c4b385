"""Regions: which part of a producer one iteration of a consumer's loop needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tunefarm.compiler.expr.affine import (
    Affine,
    Atom,
    Ranges,
    Substitution,
    affine,
    affine_range,
    expr_range,
)
from tunefarm.compiler.expr.nodes import Expr, Index, Load, add, binary, index, integer
from tunefarm.compiler.expr.walk import axes_of, loads, substitute
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.frozen import frozen, replace


@frozen
class Region:
    """A box of a stage's result: per axis an index where it begins and an extent."""

    base: tuple[Expr, ...]
    extents: tuple[int, ...]


@frozen
class _Side:
    """What loads need of one dimension."""

    outer: Affine
    low: int
    high: int


@frozen
class User:
    """A stage that reads others, with its axes as forms over free and bound variables."""

    name: str
    loads: tuple[Load, ...]
    under: Substitution

    @staticmethod
    def of(stage: Stage, values: Mapping[str, Expr], ranges: Ranges) -> User:
        """The stage where its axes have these values, which lie within the ranges."""
        forms = {name: affine(value, ranges) for name, value in values.items()}
        under = Substitution(forms, lambda expr: substitute(expr, values))
        return User(stage.name, tuple(loads(stage.body)), under)


Bind: TypeAlias = Callable[[str, Expr], Expr]
"""Gives an expression a name like this one, for statements inside; returns what is read instead."""


def required_regions(
    producers: Sequence[Stage],
    consumer: User,
    free: Ranges,
    bound: dict[str, tuple[int, int]],
    padded: Mapping[str, int],
    bind: Bind,
) -> dict[str, Region]:
    """The boxes of `producers`, by name, that the consumer and later producers read.

    Where a box would begin before its tensor or end behind it, as windows over a border do, it is
    moved inside: what it lacks there nobody reads. `bind` adds such a place to what is `bound`.
    """
    free, users = dict(free), [consumer]
    regions: dict[str, Region] = {}
    for stage in reversed(producers):
        region = required_region(stage, users, free, bound, padded)
        region = regions[stage.name] = _moved_inside(stage, region, bound, padded, bind)
        local: dict[str, Expr] = {}
        axes = (*stage.axes, *stage.reduce_axes)
        bases = (*region.base, *(integer(0) for _ in stage.reduce_axes))
        extents = (*region.extents, *(axis.extent for axis in stage.reduce_axes))
        for axis, base, extent in zip(axes, bases, extents, strict=True):
            name = free_name(f"{stage.name}.{axis.name}")
            free[name] = (0, extent - 1)
            local[axis.name] = add(base, index(name))
        users.append(User.of(stage, local, {**bound, **free}))
    return regions


def required_region(
    producer: Stage,
    users: Sequence[User],
    free: Ranges,
    bound: Ranges,
    padded: Mapping[str, int],
) -> Region:
    """The box of `producer` that the users read.

    Each user gives its axes as expressions over `free` variables (which run over their range inside
    the region) and `bound` variables (fixed there). A dimension whose index is not affine, or whose
    fixed part differs between loads, is needed in full. Along the axes that are `padded` to more
    than their extent by masked tiles a region may reach that far.
    """
    ranges = {**bound, **free}
    reads = [(user, load) for user in users for load in user.loads if load.buffer == producer.name]
    base: list[Expr] = []
    extents: list[int] = []
    for dimension, axis in enumerate(producer.axes):
        # The loads of a window share the nodes of their indices: each is looked at once.
        indices = [(user, load.indices[dimension]) for user, load in reads]
        distinct = {(id(user), id(item)): (user, item) for user, item in indices}
        side = _joined(
            _side(affine(item, ranges, user.under), free) for user, item in distinct.values()
        )
        most = padded.get(axis.name, axis.extent)
        if side is None or side.high - side.low + 1 >= most:
            base.append(Affine(0, ()).to_expr())
            extents.append(axis.extent if side is None else most)
        else:
            base.append(side.outer.plus(Affine(side.low, ())).to_expr())
            extents.append(side.high - side.low + 1)
    return Region(tuple(base), tuple(extents))


def _moved_inside(
    stage: Stage, region: Region, bound: Ranges, padded: Mapping[str, int], bind: Bind
) -> Region:
    """The region, of the same extents, within the stage: padding is read as if it were there."""
    bases: list[Expr] = []
    for axis, base, extent in zip(stage.axes, region.base, region.extents, strict=True):
        low, high = expr_range(base, bound)
        last = axis.extent - extent
        if axis.name not in padded and low < 0:
            base = binary("max", base, integer(0))
        if axis.name not in padded and high > last:
            base = binary("min", base, integer(last))
        moved = axis.name not in padded and (low < 0 or high > last)
        bases.append(bind(f"{stage.name}.{axis.name}.start", base) if moved else base)
    return replace(region, base=tuple(bases))


def _joined(sides: Iterator[_Side | None]) -> _Side | None:
    """What holds all sides; None if there is none, one is unknown or their fixed parts differ."""
    joined = next(sides, None)
    for side in sides:
        if joined is None or side is None or side.outer != joined.outer:
            return None
        joined = _Side(joined.outer, min(joined.low, side.low), max(joined.high, side.high))
    return joined


def _side(form: Affine, free: Ranges) -> _Side | None:
    """Separate the fixed part from the part that varies; None if they cannot be separated."""
    outer: list[tuple[Atom, int]] = []
    inner: list[tuple[Atom, int]] = []
    for atom, coefficient in form.terms:
        if isinstance(atom, str):
            (inner if atom in free else outer).append((atom, coefficient))
        elif loads(atom):
            return None
        elif axes_of(atom) <= free.keys():
            inner.append((atom, coefficient))
        elif axes_of(atom) & free.keys():
            return None
        else:
            outer.append((atom, coefficient))
    low, high = affine_range(Affine(form.constant, tuple(inner)), free)
    return _Side(Affine(0, tuple(outer)), low, high)


def free_name(axis: str) -> str:
    """A variable that stands for any value of an axis that no loop has bound yet."""
    return f"?{axis}"


def free_index(axis: str) -> Index:
    """The variable that stands for any place along an axis."""
    return index(free_name(axis))
