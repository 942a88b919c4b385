"""Conditions on dynamic sizes: `4 * i + j < 3 * sizes[2]`, sums of variables.

`i >= sizes[1]` is one whose scale is -1: `-i - 1 < -sizes[1]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tunefarm.compiler.expr.affine import Affine, Ranges, affine, affine_range
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Load, add, binary, integer, mul
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.kernels.kernel import ValidExtent
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen, replace

Terms: TypeAlias = tuple[tuple[str, int], ...]
Key: TypeAlias = tuple[Terms, int, Load]


@frozen
class Condition:
    """terms + constant < scale * size, where the size is one element of an input of i64."""

    terms: Terms  # by variable, in alphabetical order
    constant: int
    scale: int
    size: Load

    @property
    def key(self) -> Key:
        """What two conditions share of which one implies the other."""
        return self.terms, self.scale, self.size

    def implies(self, other: Condition) -> bool:
        """Where this one holds the other one does."""
        return self.key == other.key and self.constant >= other.constant

    def coefficient(self, variable: str) -> int:
        """The number that the variable is multiplied by; 0 if it is not in it."""
        return next((factor for name, factor in self.terms if name == variable), 0)

    def at(self, variable: str, value: int) -> Condition:
        """The condition with a variable fixed."""
        factor = self.coefficient(variable)
        if not factor:
            return self
        terms = tuple(term for term in self.terms if term[0] != variable)
        return Condition(terms, self.constant + factor * value, self.scale, self.size)

    def weakest(self, inside: Ranges) -> Condition:
        """Without variables of these ranges: it holds where this does for any values of them."""
        condition = self
        for name, factor in self.terms:
            if name in inside:
                low, high = inside[name]
                condition = condition.at(name, low if factor > 0 else high)
        return condition

    def strictest(self, inside: Ranges) -> Condition:
        """Without variables of these ranges: where it holds this does for all values of them."""
        return self.weakest({name: (high, low) for name, (low, high) in inside.items()})

    def moved(self, by: int) -> Condition:
        """The condition on a sum that is larger by so many."""
        return replace(self, constant=self.constant + by)

    def along(self, variable: str, factor: int) -> Condition:
        """The condition on a sum that a new variable is added to, so many times."""
        return replace(self, terms=tuple(sorted((*self.terms, (variable, factor)))))

    def with_form(self, form: Affine) -> Condition | None:
        """The same bound for another sum; None where that is no sum of variables."""
        named = terms_of(form)
        if named is None:
            return None
        return Condition(named, form.constant, self.scale, self.size)

    @property
    def form(self) -> Affine:
        """The left side."""
        return Affine(self.constant, self.terms)

    def times(self, factor: int) -> Condition:
        """The same condition with both sides multiplied: 2 * i + 1 < 2 * size."""
        terms = tuple((name, by * factor) for name, by in self.terms)
        constant = (self.constant + 1) * factor - 1
        return Condition(terms, constant, self.scale * factor, self.size)

    def to_expr(self) -> Expr:
        """The condition as an expression of type bool."""
        if self.scale == -1:
            return binary("ge", Affine(-1, ()).plus(self.form, -1).to_expr(), self.size)
        return binary("lt", self.form.to_expr(), self.bound())

    def bound(self) -> Expr:
        """The right side."""
        return mul(self.size, integer(self.scale))

    def rounds(self, variable: str) -> Expr:
        """Before which value of a variable, of a positive factor, the condition holds."""
        factor = self.coefficient(variable)
        outer = self.at(variable, 0).form.plus(Affine(1 - factor, ()))
        left = add(self.bound(), Affine(0, ()).plus(outer, -1).to_expr())
        return left if factor == 1 else binary("floordiv", left, integer(factor))

    def first_round(self, variable: str) -> Expr:
        """From which value of a variable, of a negative factor, on the condition holds."""
        factor = -self.coefficient(variable)
        outer = self.at(variable, 0).form.plus(Affine(factor, ()))
        left = add(outer.to_expr(), mul(self.size, integer(-self.scale)))
        return left if factor == 1 else binary("floordiv", left, integer(factor))


def greatest_of(limits: Iterable[ValidExtent]) -> dict[Load, int]:
    """How large the sizes are at most that end an output: by size."""
    found: dict[Load, int] = {}
    for limit in limits:
        size = Load(DType.I64, limit.sizes, (integer(limit.number),))
        found[size] = max(found.get(size, 1), limit.extent - limit.offset)
    return found


def narrowed(ranges: Ranges, condition: Expr) -> Ranges:
    """The ranges of variables where a condition holds: those that are less than a number."""
    found = dict(ranges)
    for part in conjuncts(condition):
        match part:
            case Binary(op="lt", left=left, right=Const(value=end)) if left.dtype is DType.I64:
                form = affine(left, ranges)
                match form.terms:
                    case ((str() as name, 1),) if name in found:
                        low, high = found[name]
                        found[name] = low, max(low, min(high, int(end) - form.constant - 1))
    return found


def terms_of(form: Affine) -> Terms | None:
    """The terms of a sum of variables, in order; None where some are no variables."""
    named = [(atom, factor) for atom, factor in form.terms if isinstance(atom, str)]
    return tuple(sorted(named)) if len(named) == len(form.terms) else None


def size_condition(expr: Expr, ranges: Ranges) -> Condition | None:
    """The condition that an expression is; None where it is none on a sum of variables."""
    match expr:
        case Binary(op="lt", left=left, right=Load() as size) if _is_size(size):
            return _condition(affine(left, ranges), size)
        case Binary(op="ge", left=left, right=Load() as size) if _is_size(size):
            form = Affine(-1, ()).plus(affine(left, ranges), -1)
            named = terms_of(form)
            return None if named is None else Condition(named, form.constant, -1, size)
    return None


def size_conditions(condition: Expr, ranges: Ranges) -> list[Condition]:
    """Those among the parts of a conjunction."""
    found = (size_condition(part, ranges) for part in conjuncts(condition))
    return [item for item in found if item is not None]


def rounds_known(variable: str, limit: Expr | None, ranges: Ranges) -> Iterator[Condition]:
    """What is known of a loop's variable from its `limit`: the inverse of `Condition.rounds`."""
    ends = [] if limit is None else [limit]
    while ends:
        match ends.pop():
            case Binary(op="min", left=left, right=right):
                ends += [left, right]
            case Binary(op="floordiv", left=left, right=Const(value=divisor)) if int(divisor) > 0:
                yield from _below(variable, int(divisor), left, ranges)
            case end:
                yield from _below(variable, 1, end, ranges)


def _below(variable: str, factor: int, end: Expr, ranges: Ranges) -> Iterator[Condition]:
    """`variable < end // factor` as a condition: factor * variable + factor - 1 < end."""
    form = affine(end, ranges)
    sizes = [(atom, by) for atom, by in form.terms if isinstance(atom, Load)]
    if len(sizes) != 1 or sizes[0][1] < 1:
        return
    ((size, scale),) = sizes
    left = Affine(factor - 1, ((variable, factor),)).plus(form, -1)
    named = terms_of(left.plus(Affine(0, ((size, scale),))))
    if named is not None:
        yield Condition(named, left.constant, scale, size)


def _is_size(load: Load) -> bool:
    plain = len(load.indices) == 1 and isinstance(load.indices[0], Const)
    return plain and load.dtype is DType.I64


def _condition(form: Affine, size: Load) -> Condition | None:
    named = terms_of(form)
    if named is not None:
        return Condition(named, form.constant, 1, size)
    match form:
        case Affine(
            constant=0, terms=((Binary(op="floordiv", left=left, right=Const(value=divisor)), 1),)
        ) if int(divisor) > 0:
            inner = affine(left, {})
            named = terms_of(inner)
            if named is not None:
                return Condition(named, inner.constant, int(divisor), size)
    return None


def limit_condition(
    limit: ValidExtent, forms: Sequence[Affine], shape: Sequence[int], ranges: Ranges
) -> Condition | None:
    """The condition that an element of this shape at these indices is within a limit.

    None if it is unknown. Tiles that reach beyond an axis write what is within it only. So axes
    inside of the limit's stride add less than that, and those inside of its period less than that.
    """
    period = limit.period
    place, step, whole = Affine(0, ()), 1, math.prod(shape) == period
    for extent, form in zip(reversed(shape), reversed(forms), strict=True):
        if step == period:
            whole = True
            break
        if limit.stride % (step * extent):
            place = place.plus(form, step)
        step *= extent
    named = terms_of(place)
    if named is None:
        return None
    constant = place.constant
    if not whole:
        named = tuple((name, factor) for name, factor in named if factor % period)
        low, high = affine_range(Affine(constant, named), ranges)
        first = low - low % period
        if high >= first + period:
            return None
        constant -= first
    size = Load(DType.I64, limit.sizes, (integer(limit.number),))
    constant -= limit.stride * limit.offset
    return reduced(Condition(named, constant, limit.stride, size), ranges)


def reduced(condition: Condition, ranges: Ranges) -> Condition:
    """The condition divided by what divides its scale, without what is less than that."""
    factors = {math.gcd(condition.scale, factor) for _, factor in condition.terms}
    for by in sorted({condition.scale, *factors}, reverse=True):
        whole = tuple((name, factor // by) for name, factor in condition.terms if factor % by == 0)
        rest = tuple(term for term in condition.terms if term[1] % by)
        constant, offset = divmod(condition.constant, by)
        low, high = affine_range(Affine(offset, rest), ranges)
        if low >= 0 and high < by:
            return Condition(whole, constant, condition.scale // by, condition.size)
    return condition


def strongest(conditions: Iterable[Condition]) -> dict[Key, Condition]:
    """By key the condition that implies the others."""
    found: dict[Key, Condition] = {}
    for condition in conditions:
        known = found.get(condition.key)
        if known is None or condition.constant > known.constant:
            found[condition.key] = condition
    return found


def shared(first: Mapping[Key, Condition], second: Mapping[Key, Condition]) -> dict[Key, Condition]:
    """By key of both the condition that either of them implies."""
    return {
        key: min(first[key], second[key], key=lambda item: item.constant)
        for key in first
        if key in second
    }
