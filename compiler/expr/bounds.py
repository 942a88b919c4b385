"""Ranges of index expressions by interval arithmetic over sums of scaled axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Select,
    Unary,
    add,
    binary,
    integer,
    mul,
)


@dataclass(frozen=True, slots=True)
class IndexRange:
    """All values lie in low..high (inclusive); `exact` says that both ends are taken."""

    low: int
    high: int
    exact: bool
    axes: frozenset[str]


def index_range(expr: Expr, extents: Mapping[str, int]) -> IndexRange | None:
    """The range of an integer expression over axes 0 <= name < extents[name], or None if unknown.

    Sums of scaled axes, and floordiv and mod of them by positive literals, are tight as long as no
    axis occurs in two terms; min, max and select give a wider range that is not exact.
    """
    match expr:
        case Const():
            return IndexRange(int(expr.value), int(expr.value), True, frozenset())
        case Index():
            if expr.name not in extents:
                return None
            return IndexRange(0, extents[expr.name] - 1, True, frozenset((expr.name,)))
        case Binary(op="add" | "sub" | "mul"):
            return _linear_range(expr, extents)
        case Binary():
            left, right = index_range(expr.left, extents), index_range(expr.right, extents)
            return _combine(expr.op, left, right)
        case Unary(op="neg"):
            return _linear_range(expr, extents)
        case Select():
            return _union(index_range(expr.then, extents), index_range(expr.otherwise, extents))
        case Cast():
            inner = index_range(expr.operand, extents) if expr.operand.dtype.is_integer else None
            return inner
        case _:
            return None


def linear_terms(expr: Expr) -> tuple[int, list[tuple[int, Expr]]]:
    """`expr` as constant + sum of coefficient * term; terms are axes or non-linear expressions.

    Terms over the same axis are merged, terms with coefficient zero dropped.
    """
    constant = 0
    coefficients: dict[object, int] = {}
    terms: dict[object, Expr] = {}
    work = [(1, expr)]
    while work:
        factor, node = work.pop()
        match node:
            case Const():
                constant += factor * int(node.value)
            case Binary(op="add"):
                work += [(factor, node.right), (factor, node.left)]
            case Binary(op="sub"):
                work += [(-factor, node.right), (factor, node.left)]
            case Unary(op="neg"):
                work.append((-factor, node.operand))
            case Binary(op="mul", right=Const(value=value)):
                work.append((factor * int(value), node.left))
            case Binary(op="mul", left=Const(value=value)):
                work.append((factor * int(value), node.right))
            case _:
                key: object = node.name if isinstance(node, Index) else id(node)
                coefficients[key] = coefficients.get(key, 0) + factor
                terms.setdefault(key, node)
    return constant, [(coefficients[key], terms[key]) for key in terms if coefficients[key]]


def _linear_range(expr: Expr, extents: Mapping[str, int]) -> IndexRange | None:
    low, terms = linear_terms(expr)
    high, exact, axes = low, True, frozenset[str]()
    for coefficient, term in terms:
        if isinstance(term, Binary) and term.op == "mul":
            return None  # a product of two expressions that are no literals
        part = index_range(term, extents)
        if part is None:
            return None
        ends = (coefficient * part.low, coefficient * part.high)
        low, high = low + min(ends), high + max(ends)
        exact = exact and part.exact and not (axes & part.axes)
        axes |= part.axes
    return IndexRange(low, high, exact, axes)


def _combine(op: str, left: IndexRange | None, right: IndexRange | None) -> IndexRange | None:
    if left is None or right is None:
        return None
    axes = left.axes | right.axes
    divisor = right.low if right.low == right.high and right.low > 0 else None
    if op == "floordiv" and divisor:
        return IndexRange(left.low // divisor, left.high // divisor, left.exact, axes)
    if op == "mod" and divisor:
        if left.low // divisor == left.high // divisor:
            return IndexRange(left.low % divisor, left.high % divisor, left.exact, axes)
        return IndexRange(0, divisor - 1, False, axes)
    if op == "max":
        return IndexRange(max(left.low, right.low), max(left.high, right.high), False, axes)
    if op == "min":
        return IndexRange(min(left.low, right.low), min(left.high, right.high), False, axes)
    return None


def _union(left: IndexRange | None, right: IndexRange | None) -> IndexRange | None:
    if left is None or right is None:
        return None
    axes = left.axes | right.axes
    return IndexRange(min(left.low, right.low), max(left.high, right.high), False, axes)


def simplify_division(op: str, dividend: Expr, divisor: int, extents: Mapping[str, int]) -> Expr:
    """`dividend floordiv divisor` or `dividend mod divisor` with the parts that divide evenly
    taken out: (16 * a + b) // 16 is a, and (16 * a + b) % 16 is b, where 0 <= b < 16."""
    constant, terms = linear_terms(dividend)
    quotient, remainder = divmod(constant, divisor)
    even = [
        (coefficient // divisor, term) for coefficient, term in terms if not coefficient % divisor
    ]
    odd = [(coefficient, term) for coefficient, term in terms if coefficient % divisor]
    rest = _sum(odd, remainder)
    found = index_range(rest, extents)
    small = found is not None and found.low >= 0 and found.high < divisor
    if op == "mod":
        return rest if small else binary("mod", rest, integer(divisor))
    if small:
        return _sum(even, quotient)
    return add(_sum(even, quotient), binary("floordiv", rest, integer(divisor)))


def _sum(terms: list[tuple[int, Expr]], constant: int) -> Expr:
    total: Expr | None = None
    for coefficient, term in terms:
        part = mul(term, integer(coefficient))
        total = part if total is None else add(total, part)
    return integer(constant) if total is None else add(total, integer(constant))
