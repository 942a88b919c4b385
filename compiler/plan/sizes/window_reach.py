"""How far windows reach: the largest index under a condition on a size, as another size.

A convolution that is needed for `oh < rows` reads `2 * oh + kh - 1`, no more than `2 * rows`. With
rows = (height + 1) // 2 that is height + 1 at most: the data is needed to one row behind its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd

from tunefarm.compiler.expr.affine import Affine, Ranges, affine, affine_range
from tunefarm.compiler.expr.nodes import Binary, Const, Expr
from tunefarm.compiler.loops.size_conditions import Condition
from tunefarm.compiler.plan.sizes.size_names import SizeName
from tunefarm.compiler.types.sizes import Dimension, Function, Size, bounds_of, divide


def reaches(
    index: Expr, condition: Condition, size: Dimension, ranges: Ranges
) -> Iterator[Dimension]:
    """Sizes that an index is below where the condition holds, whose size this is."""
    form = affine(index, ranges)
    for highest in _highest(form, condition, size, ranges):
        yield highest + 1


def named(reach: Dimension, sizes: Mapping[SizeName, Dimension]) -> Iterator[tuple[SizeName, int]]:
    """Sizes with what is to be added to them, so that the sum is no less than the reach."""
    for bound in _without_fractions(reach):
        for name, size in sizes.items():
            if not isinstance(bound, Size) or not isinstance(size, Size):
                continue
            more = bound - size if bound.open_terms == size.open_terms else None
            if isinstance(more, int):
                yield name, more


def _highest(
    form: Affine, condition: Condition, size: Dimension, ranges: Ranges
) -> Iterator[Dimension]:
    """Upper bounds of a sum where the condition holds."""
    name, coefficient = condition.terms[0]
    factor, rest = divmod(form.coefficient(name), coefficient)
    if factor >= 1 and not rest:
        left = form.plus(condition.form, -factor)
        if not any(left.coefficient(variable) for variable, _ in condition.terms):
            most = affine_range(left, ranges)[1]
            yield (size * condition.scale - 1) * factor + most
        return
    if form.coefficient(name) > 0 and coefficient > 0:  # y of y * 2 + x < size
        others = condition.form.plus(Affine(0, ((name, 1),)), -coefficient)
        least = affine_range(others, ranges)[0]
        by = form.coefficient(name)
        most = affine_range(form.plus(Affine(0, ((name, 1),)), -by), ranges)[1]
        yield divide(size * condition.scale - 1 - least, coefficient) * by + most
    if form.coefficient(name):
        return
    for atom, by in form.terms:
        if isinstance(atom, Binary) and by > 0:
            others = form.plus(Affine(0, ((atom, 1),)), -by)
            most = affine_range(others, ranges)[1]
            for highest in _highest_atom(atom, condition, size, ranges):
                yield highest * by + most


def _highest_atom(
    atom: Binary, condition: Condition, size: Dimension, ranges: Ranges
) -> Iterator[Dimension]:
    left = _highest(affine(atom.left, ranges), condition, size, ranges)
    match atom:
        case Binary(op="floordiv", right=Const(value=divisor)) if int(divisor) > 0:
            yield from (divide(highest, int(divisor)) for highest in left)
        case Binary(op="min", right=right):
            yield from left
            yield from _highest(affine(right, ranges), condition, size, ranges)
        case Binary(op="max", right=Const(value=least)):
            # max(y, 0) is y + 2 at most where y is -2 at least.
            yield from (item + max(0, int(least) - bounds_of(item)[0]) for item in left)


def _without_fractions(size: Dimension) -> Iterator[Dimension]:
    """The size, and what it is at most: c * (x // d) <= c / g * (x // (d / g))."""
    yield size
    if not isinstance(size, Size):
        return
    for atoms, factor in size.terms:
        if len(atoms) != 1 or not isinstance(atoms[0], Function) or atoms[0].name != "//":
            continue
        dividend, divisor = atoms[0].operands
        if not isinstance(divisor, int) or factor < 0:
            continue
        rest = size - Size(((atoms, factor),))
        common = gcd(factor, divisor)
        for by in range(common, 1, -1):
            if common % by == 0:
                yield from _without_fractions(
                    rest + divide(dividend, divisor // by) * (factor // by)
                )
