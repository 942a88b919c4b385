"""Padded axes: which of an axis' elements are there, when only some are.

An axis has factors, from the outermost to the innermost, each a true size and the extent that it is
padded to: (5 of 8 sentences, 20 of 512 words) is an axis of 4096 elements, 100 of which are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Final, TypeAlias

from tunefarm.compiler.types.sizes import (
    Dimension,
    Symbol,
    divide,
    product_of,
    quotient,
    symbols_of,
)

Factor: TypeAlias = tuple[Dimension, int]
Axis: TypeAlias = tuple[Factor, ...]
PaddedShape: TypeAlias = tuple[Axis, ...]

ONE: Final[Axis] = ((1, 1),)


def whole(extent: int) -> Axis:
    """An axis without padding."""
    return ((extent, extent),)


def unpadded_shape(shape: Sequence[int]) -> PaddedShape:
    """The axes of a tensor without padding."""
    return tuple(((extent, extent),) for extent in shape)


def is_unpadded(axis: Axis) -> bool:
    """Whether an axis has no padding, whatever the symbols are."""
    return all(true == extent for true, extent in axis)


def extent_of(axis: Axis) -> int:
    """The elements of an axis, padding included."""
    return prod(extent for _, extent in axis)


def size_of(axis: Axis) -> Dimension:
    """The elements of an axis that are there."""
    return product_of(true for true, _ in axis)


def shared_padding(first: PaddedShape, second: PaddedShape) -> PaddedShape | None:
    """The padding that two views of a value have in common; None where that is none."""
    if tuple(map(extent_of, first)) != tuple(map(extent_of, second)):
        return None
    shared = tuple(
        left if left == right else whole(extent_of(left))
        for left, right in zip(first, second, strict=True)
    )
    return None if all(map(is_unpadded, shared)) else shared


def true_shape(dims: PaddedShape) -> tuple[Dimension, ...]:
    """The shape that the caller of a model sees."""
    return tuple(size_of(axis) for axis in dims)


def symbols_of_axes(dims: Iterable[Axis]) -> frozenset[Symbol]:
    """The symbols that axes depend on."""
    none: frozenset[Symbol] = frozenset()
    return none.union(*(symbols_of(true) for axis in dims for true, _ in axis))


def joined(factors: Iterable[Factor]) -> Axis:
    """These factors as one axis, with as few factors as can be."""
    result: list[Factor] = []
    for true, extent in factors:
        if true == extent == 1:
            continue
        if result and true == extent:
            outer, outer_extent = result[-1]
            result[-1] = (outer * extent, outer_extent * extent)
        else:
            result.append((true, extent))
    return tuple(result) or ONE


def split(factor: Factor, inner: int) -> Factor | None:
    """What is outside of the innermost `inner` elements of a factor; None where that is unknown."""
    true, extent = factor
    outer = quotient(true, inner)
    return (outer, extent // inner) if outer is not None and extent % inner == 0 else None


def regrouped(dims: PaddedShape, shape: Sequence[int]) -> PaddedShape | None:
    """The axes under another shape of as many elements, padding included.

    None where a factor with padding would be taken apart.
    """
    left = list(joined(factor for axis in dims for factor in axis))
    result: list[Axis] = []
    for extent in shape:
        taken: list[Factor] = []
        need = extent
        while need > 1 and left:
            factor = left.pop(0)
            if need % factor[1] == 0:
                taken.append(factor)
                need //= factor[1]
                continue
            inner = factor[1] // need
            outer = split(factor, inner) if factor[1] % need == 0 else None
            if outer is None:
                return None
            taken.append(outer)
            left.insert(0, (inner, inner))
            need = 1
        if need > 1:
            return None
        result.append(joined(taken))
    left = [factor for factor in left if factor != (1, 1)]
    if left and result and extent_of(joined(left)) == 1:
        result[-1] = joined((*result[-1], *left))  # a size of 0 or 1
        return tuple(result)
    return None if left else tuple(result)


def reshaped(
    dims: PaddedShape, shape: Sequence[Dimension]
) -> tuple[PaddedShape, list[Factor]] | None:
    """The axes under another true shape, and what must divide: (size, number) each.

    None where the elements do not lie as the new shape has them.
    """
    factors = [factor for axis in dims for factor in axis]
    return _reshaped(_runs(factors), shape) or _reshaped(list(joined(factors)), shape)


def _runs(factors: Iterable[Factor]) -> list[Factor]:
    """The factors, neighbours without padding as one."""
    result: list[Factor] = []
    for true, extent in factors:
        if result and true == extent and result[-1][0] == result[-1][1]:
            extent *= result.pop()[1]
            true = extent
        result.append((true, extent))
    return result


def _reshaped(
    left: list[Factor], shape: Sequence[Dimension]
) -> tuple[PaddedShape, list[Factor]] | None:
    result: list[Axis] = []
    divisible: list[Factor] = []
    for position, size in enumerate(shape):
        together = _product_of_first(left, size)
        taken: list[Factor] = left[:together]
        left = left[together:]
        need = 1 if together else size
        while need != 1:
            if not left:
                return None
            factor = left.pop(0)
            rest = 1 if need == factor[0] else quotient(need, factor[0])
            if rest is not None:
                taken.append(factor)
                need = rest
                continue
            inner = quotient(factor[0], need)
            if inner is None:
                inner = _floored(factor, need, shape[position + 1 :])
                if inner is not None:
                    divisible.append((factor[0], inner))
            if not isinstance(inner, int) or inner < 1 or factor[1] % inner:
                return None
            taken.append((need, factor[1] // inner))
            left.insert(0, (inner, inner))
            need = 1
        result.append(joined(taken))
    if any(factor != (1, 1) for factor in left):
        return None
    return tuple(result), divisible


def _product_of_first(factors: Sequence[Factor], size: Dimension) -> int:
    """How many of the first factors make up a size; 0 where no number of them does."""
    product: Dimension = 1
    for count, (true, _) in enumerate(factors, start=1):
        product = product * true
        if product == size and size != 1:
            return count
    return 0


def _floored(factor: Factor, need: Dimension, behind: Sequence[Dimension]) -> int | None:
    """The number behind a size that is the factor's divided by it and rounded down."""
    inner = next((size for size in behind if size != 1), 1)
    fits = isinstance(inner, int) and inner > 1 and divide(factor[0], inner) == need
    return inner if isinstance(inner, int) and fits else None
