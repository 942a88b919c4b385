"""What expressions and local buffers are worth beyond a size: -inf under a mask, 0 behind exp."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tunefarm.compiler.expr.affine import Affine, Ranges, affine, affine_range
from tunefarm.compiler.expr.functions import BINARY, UNARY
from tunefarm.compiler.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary, const
from tunefarm.compiler.expr.walk import axes_of, children
from tunefarm.compiler.loops.ir import Store
from tunefarm.compiler.loops.size_conditions import Condition, Key, size_conditions, terms_of
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen


@frozen
class Padding:
    """A buffer holds `value` where factor * index of a dimension + what is outside is beyond."""

    dimension: int
    factor: int
    outer: Condition  # over variables outside of the buffer's scope
    value: Const

    @property
    def key(self) -> tuple[int, int, Key]:
        """What sorts paddings, the same in every run."""
        return self.dimension, self.factor, self.outer.key

    def condition(self, load: Load, ranges: Ranges) -> Condition | None:
        """The condition beyond which this load gives the value."""
        if not self.factor:
            return self.outer
        form = affine(load.indices[self.dimension], ranges)
        return self.outer.with_form(self.outer.form.plus(form, self.factor))


Step = tuple[int, int, int, Load]
"""A dimension, the factor of its index in a condition, and the condition's scale and size."""

Known = Mapping[str, tuple[Padding, ...]]
"""What is known of buffers, by name."""


def padding_of(store: Store, ranges: Ranges, known: Known) -> list[Padding]:
    """What a store leaves beyond sizes."""
    found = []
    forms = IndexForms(store.indices, ranges)
    stored = SizedValue(store.value, ranges, known)
    for condition in stored.candidates():
        value = stored.beyond(condition)
        if value is None:
            continue
        for dimension, factor, outer in forms.along(condition):
            found.append(Padding(dimension, factor, outer, value))
    return found


class IndexForms:
    """The affine forms of indices, and what conditions on their variables say of the indices.

    Each answer is (dimension, factor, outer): `factor` times the index of the dimension, and what
    is outside, keep the condition `outer`.
    """

    def __init__(self, indices: Sequence[Expr], ranges: Ranges) -> None:
        self._indices, self._ranges = indices, ranges
        self._forms = [affine(item, ranges) for item in indices]
        self._terms = [terms_of(form) or () for form in self._forms]
        self._whole = [
            (number, divisor, form, terms_of(form) or ())
            for number, own in enumerate(self._forms)
            for divisor, form in (_times_divisor(own, ranges),)
            if divisor > 1
        ]

    def along(self, condition: Condition) -> Iterator[tuple[int, int, Condition]]:
        """The condition as one on an index: dimension and factor of the index, and what is left.

        Where it is on no index at all the factor is 0.
        """
        yield 0, 0, condition
        for dimension, form in enumerate(self._forms):
            shared = [term for term in self._terms[dimension] if condition.coefficient(term[0])]
            if not shared:
                continue
            name, step = shared[0]
            scaled = condition
            if step > 1 and condition.coefficient(name) % step:
                scaled = condition.times(step // math.gcd(step, condition.coefficient(name)))
            factor, rest = divmod(scaled.coefficient(name), step)
            outer = scaled.with_form(scaled.form.plus(form, -factor))
            if not rest and outer is not None:
                yield dimension, factor, outer

    def below_fractions(self, condition: Condition) -> Iterator[tuple[int, int, Condition]]:
        """As `along`, of indices with fractions, where the condition bounds these from above.

        With y < size the index (y + 1) // 2 - k has 2 * index - 1 + 2 * k <= y < size.
        """
        for dimension, divisor, form, terms in self._whole:
            shared = [term for term in terms if condition.coefficient(term[0]) > 0]
            if not shared or shared[0][1] < 1:
                continue
            name, step = shared[0]
            by = step // math.gcd(step, condition.coefficient(name))
            scaled = condition.times(by) if by > 1 else condition
            factor = scaled.coefficient(name) // step
            outer = scaled.with_form(scaled.form.plus(form, -factor))
            if outer is not None:
                yield dimension, factor * divisor, outer

    def at_numbers(
        self, condition: Condition, steps: Iterable[Step]
    ) -> Iterator[tuple[int, int, Condition]]:
        """The condition as one on indices that none of its variables is in, as in other reads'
        `steps`: on the largest index that is read, or on the smallest where the factor is negative.

        A round that was peeled off a loop reads there what is 4 * index + 0 < size for all rounds:
        element 15 where 60 < size.
        """
        for dimension, factor, scale, size in steps:
            by, rest = divmod(scale, condition.scale)
            if size != condition.size or rest or by < 1:
                continue
            names = axes_of(self._indices[dimension])
            if not any(name in names for name, _ in condition.terms):
                low, high = affine_range(self._forms[dimension], self._ranges)
                scaled = condition.times(by) if by > 1 else condition
                yield dimension, factor, scaled.moved(-factor * (high if factor > 0 else low))


def _times_divisor(form: Affine, ranges: Ranges) -> tuple[int, Affine]:
    """A number, and a sum of variables that is no less than so many times the form.

    1 and the form where it has no fractions, or others than of sums of variables.
    """
    fractions = [(atom, by) for atom, by in form.terms if not isinstance(atom, str)]
    divisor, numerators = 1, list[tuple[Affine, int, int]]()
    for atom, by in fractions:
        match atom:
            case Binary(op="floordiv", left=left, right=Const(value=value)) if by > 0 < int(value):
                numerators.append((affine(left, ranges), by, int(value)))
                divisor = math.lcm(divisor, int(value))
            case _:
                return 1, form
    whole = Affine(form.constant, tuple(term for term in form.terms if isinstance(term[0], str)))
    total = Affine(0, ()).plus(whole, divisor)
    for numerator, by, value in numerators:
        total = total.plus(numerator, by * (divisor // value))
    return divisor, total


class SizedValue:
    """An expression where it stands, and what it is worth beyond sizes; each of its nodes is asked
    once for the conditions that it is under."""

    def __init__(self, value: Expr, ranges: Ranges, known: Known) -> None:
        self._value, self._ranges, self._known = value, ranges, known
        self._selects: dict[int, list[Condition]] = {}
        self._padding: dict[int, list[tuple[Condition, Const]]] = {}

    def candidates(self) -> list[Condition]:
        """Conditions that may decide what it is: of selects, and of padding that it reads."""
        found: dict[Condition, None] = {}
        for node in nodes(self._value):
            if isinstance(node, Select):
                found |= dict.fromkeys(self._selected(node))
            elif isinstance(node, Load):
                found |= dict.fromkeys(condition for condition, _ in self._padded(node))
        return list(found)

    def beyond(self, condition: Condition) -> Const | None:
        """The literal that it is worth where the condition does not hold; None if unknown.

        A difference to -inf is -inf: where it is NaN, all of the row is.
        """
        return self._folded(self._value, condition, {})

    def _selected(self, node: Select) -> list[Condition]:
        """The conditions that a select asks for."""
        if id(node) not in self._selects:
            self._selects[id(node)] = size_conditions(node.condition, self._ranges)
        return self._selects[id(node)]

    def _padded(self, node: Load) -> list[tuple[Condition, Const]]:
        """The conditions beyond which a load gives a value."""
        if id(node) not in self._padding:
            paddings = self._known.get(node.buffer, ())
            found = [(item.condition(node, self._ranges), item.value) for item in paddings]
            self._padding[id(node)] = [(own, value) for own, value in found if own is not None]
        return self._padding[id(node)]

    def _folded(self, node: Expr, beyond: Condition, memo: dict[int, Const | None]) -> Const | None:
        if id(node) not in memo:
            memo[id(node)] = self._fold(node, beyond, memo)
        return memo[id(node)]

    def _fold(self, node: Expr, beyond: Condition, memo: dict[int, Const | None]) -> Const | None:
        match node:
            case Const():
                return node
            case Load():
                padded = self._padded(node)
                return next((value for own, value in padded if own.implies(beyond)), None)
            case Select(then=then, otherwise=otherwise):
                if any(own.implies(beyond) for own in self._selected(node)):
                    return self._folded(otherwise, beyond, memo)
                first = self._folded(then, beyond, memo)
                return first if first == self._folded(otherwise, beyond, memo) else None
            case Binary(op=op, left=left, right=right):
                one, other = (self._folded(item, beyond, memo) for item in (left, right))
                return _combined(node.dtype, op, one, other)
            case Unary(op=op, operand=operand):
                inner = self._folded(operand, beyond, memo)
                return None if inner is None else _evaluated(node.dtype, UNARY[op].evaluate, inner)
            case Cast(dtype=dtype, operand=operand):
                inner = self._folded(operand, beyond, memo)
                if inner is None:
                    return None
                array = converted(np.asarray(inner.value, inner.dtype.numpy), dtype)
                return const(array.item(), dtype)
        return None


def _combined(dtype: DType, op: str, left: Const | None, right: Const | None) -> Const | None:
    if left is not None and right is not None:
        return _evaluated(dtype, BINARY[op].evaluate, left, right)
    if not dtype.is_float:
        return None
    lowest = op in ("add", "sub") and left is not None and left.value == -math.inf
    lowest = lowest or (op == "add" and right is not None and right.value == -math.inf)
    return const(-math.inf, dtype) if lowest else None


def _evaluated(dtype: DType, evaluate: object, *operands: Const) -> Const | None:
    assert callable(evaluate)
    with np.errstate(all="ignore"):
        arrays = [np.asarray(operand.value, operand.dtype.numpy) for operand in operands]
        return const(np.asarray(evaluate(*arrays)).item(), dtype)


def nodes(value: Expr) -> Iterator[Expr]:
    """Every node of an expression once."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(children(node))
