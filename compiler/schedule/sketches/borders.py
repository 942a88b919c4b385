"""Borders: where along an axis a choice by position flips, as between the inputs of a concat."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, lcm

import numpy as np

from tunefarm.compiler.expr.affine import affine, linear
from tunefarm.compiler.expr.functions import BINARY
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Index
from tunefarm.compiler.expr.walk import axes_of, postorder
from tunefarm.compiler.kernels.stage import Axis
from tunefarm.compiler.schedule.nest_shape import Counts
from tunefarm.compiler.types.dtypes import DType

MAX_BORDERS = 32  # the body is repeated between them: beyond, its code costs more than the choice
MAX_STEPS = 16  # the same where divided positions are among them: such bodies are longer


def borders(body: Expr, axis: Axis, in_lanes: bool = False) -> tuple[int, ...]:
    """Positions 0 < p < extent at which a comparison of indices along `axis` flips, in order.

    With `in_lanes`, where vectors lie along the axis, comparisons of divided positions count, and
    divisions whose results change: between them a vector's elements lie in a pattern. Where more
    than `MAX_BORDERS` do, or with divisions more than `MAX_STEPS`, none.
    """
    nodes = [
        node
        for node in postorder(body)
        if isinstance(node, Binary) and node.left.dtype is DType.I64
    ]
    found = flips(body, axis.name)
    steps = {position for node in nodes if in_lanes for position in _steps(node, axis)}
    inside = sorted(position for position in found | steps if 0 < position < axis.extent)
    most = MAX_BORDERS if steps <= found else MAX_STEPS
    return tuple(inside) if len(inside) <= most else ()


def flips(body: Expr, axis: str) -> set[int]:
    """The positions at which a comparison of indices along an axis flips."""
    nodes = [node for node in postorder(body) if isinstance(node, Binary)]
    compared = [node for node in nodes if node.left.dtype is DType.I64]
    return {position for node in compared for position in _flips(node, axis)}


def period(body: Expr, axis: Axis) -> int:
    """After how many positions along `axis` divided indices lie in the same pattern again."""
    repeats = 1
    for node in postorder(body):
        if not isinstance(node, Binary) or node.op not in ("floordiv", "mod"):
            continue
        if isinstance(node.right, Const) and axis.name in axes_of(node.left):
            divisor, slope = int(node.right.value), linear(node.left).coefficient(axis.name)
            if slope and 1 < divisor < axis.extent * abs(slope):
                repeats = lcm(repeats, divisor // gcd(divisor, slope))
    return repeats


def tile_cuts(positions: tuple[int, ...], factor: Counts) -> tuple[Counts, ...]:
    """Where to cut loops over tiles, so that only tiles which hold a border stand alone.

    One array for each end of a piece, shaped like `factor`; an end may be 0, or equal others.
    """
    return tuple(end for p in positions for end in (p // factor, -(-p // factor)))


def _flips(node: Binary, axis: str) -> Iterator[int]:
    """The first position at which `left - right`, linear in the axis, changes its sign."""
    if node.op not in (*_STRICT, *_LOOSE):
        return
    form = affine(node.left, {}).plus(affine(node.right, {}), -1)
    slope = form.coefficient(axis)
    if len(form.terms) != 1 or not slope:
        return
    reached = -(form.constant // slope)  # the first position with left >= right, if slope > 0
    passed = -form.constant // slope + 1  # the first position with left > right, if slope > 0
    yield reached if (node.op in _STRICT) == (slope > 0) else passed


def _steps(node: Binary, axis: Axis) -> Iterator[int]:
    """Where the outcome of a comparison, or of a division with few outcomes, is another one."""
    if node.op not in (*_STRICT, *_LOOSE, "floordiv", "mod") or axes_of(node) != {axis.name}:
        return
    positions = np.arange(axis.extent)
    left, right = _along(node.left, positions), _along(node.right, positions)
    if left is None or right is None:
        return
    if node.op in ("floordiv", "mod"):
        if np.any(right < 1):
            return
        outcome = left // right
    else:
        outcome = (left >= right if node.op in _STRICT else left > right).astype(np.int64)
    changes = np.flatnonzero(outcome[1:] != outcome[:-1]) + 1
    if len(changes) <= MAX_STEPS:
        yield from changes.tolist()


def _along(expr: Expr, positions: Counts) -> Counts | None:
    """The values of an index expression along its only axis; None where they are not known."""
    if isinstance(expr, Const):
        return np.full(len(positions), int(expr.value))
    if isinstance(expr, Index):
        return positions
    if not isinstance(expr, Binary) or expr.op not in _INDEX_OPS or expr.dtype is not DType.I64:
        return None
    left, right = _along(expr.left, positions), _along(expr.right, positions)
    if left is None or right is None or (expr.op in ("floordiv", "mod") and np.any(right < 1)):
        return None
    return np.asarray(BINARY[expr.op].evaluate(left, right), np.int64)


_STRICT = ("lt", "ge", "min", "max")
_LOOSE = ("gt", "le")
_INDEX_OPS = ("add", "sub", "mul", "floordiv", "mod", "min", "max")
