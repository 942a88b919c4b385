"""Affine forms of index expressions, and their ranges.

`affine(expr)` rewrites an i64 expression as constant + sum of coefficient * atom, where an atom is
a variable or an expression that is not affine (a division, a load, a minimum). Divisions and
remainders are resolved where the variables' ranges prove that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Unary,
    add,
    binary,
    index,
    integer,
    mul,
)
from compiler.types.dtypes import DType

Ranges = Mapping[str, tuple[int, int]]  # inclusive
Atom: TypeAlias = str | Expr


class Affine(NamedTuple):
    """constant + sum(coefficient * atom): terms in order of first appearance, none of them 0."""

    constant: int
    terms: tuple[tuple[Atom, int], ...]

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def coefficient(self, variable: str) -> int:
        for atom, coefficient in self.terms:
            if atom == variable:
                return coefficient
        return 0

    def to_expr(self) -> Expr:
        """An expression with this value."""
        result: Expr | None = None
        for atom, coefficient in self.terms:
            variable = index(atom) if isinstance(atom, str) else atom
            term = mul(variable, integer(coefficient))
            result = term if result is None else add(result, term)
        if result is None:
            return integer(self.constant)
        return add(result, integer(self.constant))

    def plus(self, other: Affine, scale: int = 1) -> Affine:
        if scale == 0:
            return self
        constant = self.constant + scale * other.constant
        if not other.terms:
            return Affine(constant, self.terms)
        if not self.terms:
            scaled = ((atom, scale * coefficient) for atom, coefficient in other.terms)
            return Affine(constant, other.terms if scale == 1 else tuple(scaled))
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + scale * coefficient
        kept = tuple((atom, coefficient) for atom, coefficient in terms.items() if coefficient)
        return Affine(constant, kept)


class Substitution(NamedTuple):
    """Affine forms to put in place of variables, and how to rewrite what is not affine."""

    forms: Mapping[str, Affine]
    rebuild: Callable[[Expr], Expr]


def affine(expr: Expr, ranges: Ranges, under: Substitution | None = None) -> Affine:
    """The affine form of an i64 expression, with the variables of `under` substituted."""
    # No structural patterns: this is where lowering spends its time.
    if isinstance(expr, Index):
        if under is not None and (form := under.forms.get(expr.name)) is not None:
            return form
        bounds = ranges.get(expr.name)
        if bounds is not None and bounds[0] == bounds[1]:
            return Affine(bounds[0], ())
        return Affine(0, ((expr.name, 1),))
    if isinstance(expr, Const):
        return Affine(int(expr.value), ())
    if isinstance(expr, Binary):
        return _affine_binary(expr, ranges, under)
    if isinstance(expr, Unary) and expr.op == "neg":
        return _ZERO.plus(affine(expr.operand, ranges, under), -1)
    return Affine(0, ((expr if under is None else under.rebuild(expr), 1),))


_ZERO = Affine(0, ())


def _affine_binary(expr: Binary, ranges: Ranges, under: Substitution | None) -> Affine:
    op = expr.op
    if op not in _AFFINE_OPS:
        return Affine(0, ((expr if under is None else under.rebuild(expr), 1),))
    left, right = affine(expr.left, ranges, under), affine(expr.right, ranges, under)
    if op == "add":
        return left.plus(right)
    if op == "sub":
        return left.plus(right, -1)
    if op == "mul":
        if not left.terms:
            return _ZERO.plus(right, left.constant)
        if not right.terms:
            return _ZERO.plus(left, right.constant)
        return Affine(0, ((binary("mul", left.to_expr(), right.to_expr()), 1),))
    if op in ("floordiv", "mod"):
        return _divide(op, left, right, ranges)
    return _extreme(op, left, right, ranges)


_AFFINE_OPS = frozenset(("add", "sub", "mul", "floordiv", "mod", "min", "max"))


def _divide(op: str, dividend: Affine, divisor: Affine, ranges: Ranges) -> Affine:
    if divisor.is_constant and divisor.constant > 0:
        d = divisor.constant
        whole = Affine(
            dividend.constant // d * d,
            tuple((atom, c) for atom, c in dividend.terms if c % d == 0),
        )
        rest = dividend.plus(whole, -1)
        low, high = affine_range(rest, ranges)
        if low >= 0 and high < d:
            if op == "mod":
                return rest
            return Affine(whole.constant // d, tuple((atom, c // d) for atom, c in whole.terms))
        if op == "mod":
            return Affine(0, ((binary("mod", rest.to_expr(), integer(d)), 1),))
        quotient = Affine(whole.constant // d, tuple((atom, c // d) for atom, c in whole.terms))
        return quotient.plus(Affine(0, ((binary("floordiv", rest.to_expr(), integer(d)), 1),)))
    return Affine(0, ((Binary(DType.I64, op, dividend.to_expr(), divisor.to_expr()), 1),))


def _extreme(op: str, left: Affine, right: Affine, ranges: Ranges) -> Affine:
    low, high = affine_range(left.plus(right, -1), ranges)
    if high <= 0:
        return left if op == "min" else right
    if low >= 0:
        return right if op == "min" else left
    return Affine(0, ((Binary(DType.I64, op, left.to_expr(), right.to_expr()), 1),))


_UNKNOWN = 1 << 62


def affine_range(form: Affine, ranges: Ranges) -> tuple[int, int]:
    """Smallest and largest value, inclusive; +-2**62 stands for unknown."""
    low = high = form.constant
    for atom, coefficient in form.terms:
        if isinstance(atom, str):
            a, b = ranges.get(atom, (-_UNKNOWN, _UNKNOWN))
        else:
            a, b = expr_range(atom, ranges)
        if coefficient < 0:
            a, b = b, a
        low += coefficient * a
        high += coefficient * b
    return max(low, -_UNKNOWN), min(high, _UNKNOWN)


def expr_range(expr: Expr, ranges: Ranges) -> tuple[int, int]:
    """Smallest and largest value of an i64 expression, inclusive."""
    match expr:
        case Const(value=value):
            return int(value), int(value)
        case Index(name=name):
            return ranges.get(name, (-_UNKNOWN, _UNKNOWN))
        case Binary(op="mod", right=Const(value=value)) if int(value) > 0:
            return 0, int(value) - 1
        case Binary(op="floordiv", left=left, right=Const(value=value)) if int(value) > 0:
            low, high = expr_range(left, ranges)
            return low // int(value), high // int(value)
        case Binary(op="min", left=left, right=right):
            a, b = expr_range(left, ranges), expr_range(right, ranges)
            middle = affine_range(_sum(left, right, ranges), ranges)[1] // 2
            return min(a[0], b[0]), min(a[1], b[1], middle)
        case Binary(op="max", left=left, right=right):
            a, b = expr_range(left, ranges), expr_range(right, ranges)
            middle = -(-affine_range(_sum(left, right, ranges), ranges)[0] // 2)
            return max(a[0], b[0], middle), max(a[1], b[1])
        case Binary(op="add" | "sub" | "mul"):
            form = affine(expr, ranges)
            if len(form.terms) == 1 and form.terms[0][0] == expr:
                return -_UNKNOWN, _UNKNOWN
            return affine_range(form, ranges)
        case Cast(operand=operand) if operand.dtype in (DType.U8, DType.BOOL):
            return 0, 255
        case _:
            return -_UNKNOWN, _UNKNOWN


def _sum(left: Expr, right: Expr, ranges: Ranges) -> Affine:
    """min(a, b) <= (a + b) / 2 <= max(a, b): a reflection like min(i, 9 - i) is at most 4."""
    return affine(left, ranges).plus(affine(right, ranges))


def decide(condition: Expr, ranges: Ranges) -> bool | None:
    """The truth of an index condition if the ranges decide it, else None."""
    match condition:
        case Const(value=value):
            return bool(value)
        case Binary(op="and", left=left, right=right):
            a, b = decide(left, ranges), decide(right, ranges)
            if a is False or b is False:
                return False
            return True if a and b else None
        case Binary(op="or", left=left, right=right):
            a, b = decide(left, ranges), decide(right, ranges)
            if a or b:
                return True
            return False if a is False and b is False else None
        case Unary(op="not", operand=operand):
            inner = decide(operand, ranges)
            return None if inner is None else not inner
        case Binary(op=op, left=left, right=right) if left.dtype is DType.I64 and op in _DECIDE:
            low, high = affine_range(affine(left, ranges).plus(affine(right, ranges), -1), ranges)
            return _DECIDE[op](low, high)
        case _:
            return None


def _decide_lt(low: int, high: int) -> bool | None:
    return True if high < 0 else False if low >= 0 else None


def _decide_le(low: int, high: int) -> bool | None:
    return True if high <= 0 else False if low > 0 else None


def _decide_eq(low: int, high: int) -> bool | None:
    if low == high == 0:
        return True
    return False if low > 0 or high < 0 else None


def _negate(value: bool | None) -> bool | None:
    return None if value is None else not value


_DECIDE: dict[str, Callable[[int, int], bool | None]] = {
    "lt": _decide_lt,
    "le": _decide_le,
    "gt": lambda low, high: _decide_lt(-high, -low),
    "ge": lambda low, high: _decide_le(-high, -low),
    "eq": _decide_eq,
    "ne": lambda low, high: _negate(_decide_eq(low, high)),
}
