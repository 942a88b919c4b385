"""Sums of products by matrix multiplication, so that the reference of a convolution is fast."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.expr.nodes import Binary, Expr, Select, all_of, const, select
from tunefarm.compiler.expr.parts import split_guards
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.types.tensor_type import Array

_Values: TypeAlias = npt.NDArray[Any]


def sum_factors(body: Expr) -> tuple[Expr, ...]:
    """The factors of what is summed; of terms that a condition leaves out, they are 0 there.

    The body itself where it is no product, or no factor runs along all that decides the condition.
    """
    if not isinstance(body, Select):
        return product_factors(body)
    guards, term = split_guards(body, "sum")
    factors, axes = product_factors(term), {name for guard in guards for name in axes_of(guard)}
    if not guards or not any(axes <= axes_of(factor) for factor in factors):
        return (body,)
    condition = all_of(*guards)
    return tuple(
        select(condition, factor, const(0, factor.dtype)) if axes <= axes_of(factor) else factor
        for factor in factors
    )


def product_factors(body: Expr) -> tuple[Expr, ...]:
    """The factors of a tree of multiplications; the body itself when it is none."""
    if isinstance(body, Binary) and body.op == "mul":
        return product_factors(body.left) + product_factors(body.right)
    return (body,)


def contract(
    factors: Sequence[Array],
    extents: tuple[int, ...],
    outer: int,
    dtype: np.dtype[Any],
) -> _Values:
    """The product of `factors`, summed over all but the first `outer` axes.

    Each factor has one dimension per axis: the axis's extent, or 1 where it does not depend on it.
    The result has the shape `extents[:outer]` and is computed in `dtype`.
    """
    if dtype.kind in "iu" and _exact_in_f64(factors, extents[outer:]):
        # NumPy multiplies matrices of integers by itself, BLAS those of floats: 100 times faster.
        exact = contract(factors, extents, outer, np.dtype(np.float64))
        return exact.astype(np.int64).astype(dtype)
    arrays: list[_Values] = [factor.astype(dtype, copy=False) for factor in factors]
    while len(arrays) > 2:
        arrays = _with_two_multiplied(arrays)
    left, right, repeats = _without_private_sums(arrays[0], arrays[1], extents, outer)
    batch: list[int] = []
    rows: list[int] = []
    columns: list[int] = []
    absent: list[int] = []
    for axis in range(outer):
        in_left, in_right = left.shape[axis] > 1, right.shape[axis] > 1
        if in_left == in_right:
            (batch if in_left else absent).append(axis)
        else:
            (rows if in_left else columns).append(axis)
    inner = list(range(outer, len(extents)))
    product = _matrices(left, batch, rows, inner) @ _matrices(right, batch, inner, columns)
    order = batch + rows + columns + absent
    spread = [1 if axis in absent else extents[axis] for axis in order]
    ordered = product.reshape(spread).transpose(np.argsort(order))
    return np.broadcast_to(ordered * np.asarray(repeats, dtype), extents[:outer])


def _with_two_multiplied(arrays: list[_Values]) -> list[_Values]:
    """The factors with the two as one whose product is smallest: scales and masks with others."""
    pairs = itertools.combinations(range(len(arrays)), 2)

    def size(pair: tuple[int, int]) -> int:
        shapes = [arrays[number].shape for number in pair]
        return math.prod(map(max, *shapes))

    first, second = min(pairs, key=size)
    rest = [array for number, array in enumerate(arrays) if number not in (first, second)]
    return [arrays[first] * arrays[second], *rest]


def _exact_in_f64(factors: Sequence[Array], reduced: Sequence[int]) -> bool:
    """No sum of products of these integers needs more digits than a double has."""
    largest = math.prod(reduced, start=1.0)
    for factor in factors:
        largest *= float(np.max(np.abs(factor.astype(np.float64))))
    return largest < 2.0**53


def _without_private_sums(
    left: _Values, right: _Values, extents: tuple[int, ...], outer: int
) -> tuple[_Values, _Values, int]:
    """Sum each factor over the reduce axes that it alone has; then both span the same ones.

    The third value is the product of the extents of the reduce axes that neither factor has.
    """
    repeats = 1
    for axis in range(outer, len(extents)):
        in_left, in_right = left.shape[axis] > 1, right.shape[axis] > 1
        if in_left and not in_right:
            left = np.add.reduce(left, axis=axis, keepdims=True, dtype=left.dtype)
        elif in_right and not in_left:
            right = np.add.reduce(right, axis=axis, keepdims=True, dtype=right.dtype)
        elif not in_left:
            repeats *= extents[axis]
    return left, right, repeats


def _matrices(
    array: _Values, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> _Values:
    """The array as a stack [batch, rows, columns]; the axes not named have the extent 1."""
    named = [*batch, *rows, *columns]
    rest = [axis for axis in range(array.ndim) if axis not in named]
    shape = [math.prod(array.shape[axis] for axis in group) for group in (batch, rows, columns)]
    return array.transpose([*named, *rest]).reshape(shape)
