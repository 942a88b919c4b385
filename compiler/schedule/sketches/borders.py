"""Borders: where along an axis a choice by position flips, as between the inputs of a concat."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.expr.affine import affine
from compiler.expr.nodes import Binary, Expr
from compiler.expr.walk import postorder
from compiler.kernels.stage import Axis
from compiler.schedule.nest_shape import Counts
from compiler.types.dtypes import DType

MAX_BORDERS = 8  # the body is repeated between them: beyond, its code costs more than the choice


def borders(body: Expr, axis: Axis) -> tuple[int, ...]:
    """Positions 0 < p < extent at which a comparison of indices along `axis` flips, in order.

    Where more than `MAX_BORDERS` do, none.
    """
    found = {
        position
        for node in postorder(body)
        if isinstance(node, Binary) and node.left.dtype is DType.I64
        for position in _flips(node, axis.name)
        if 0 < position < axis.extent
    }
    return tuple(sorted(found)) if len(found) <= MAX_BORDERS else ()


def tile_cuts(positions: tuple[int, ...], factor: Counts) -> tuple[Counts, ...]:
    """Where to cut loops over tiles, so that only tiles which hold a border stand alone.

    One array for each end of a piece, shaped like `factor`; an end may be 0, or equal others.
    """
    return tuple(end for p in positions for end in (p // factor, -(-p // factor)))


def _flips(node: Binary, axis: str) -> Iterator[int]:
    """The first position at which `left - right`, linear in the axis, changes its sign."""
    if node.op not in ("lt", "le", "gt", "ge", "min", "max"):
        return
    form = affine(node.left, {}).plus(affine(node.right, {}), -1)
    slope = form.coefficient(axis)
    if len(form.terms) != 1 or not slope:
        return
    reached = -(form.constant // slope)  # the first position with left >= right, if slope > 0
    passed = -form.constant // slope + 1  # the first position with left > right, if slope > 0
    strict = node.op in ("lt", "ge", "min", "max")
    yield reached if strict == (slope > 0) else passed
