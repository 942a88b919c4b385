"""Affine forms of index expressions, their ranges, and what follows from these.

`affine(expr)` rewrites an i64 expression as constant + sum of coefficient * atom, where an atom is
a variable or an expression that is not affine (a division, a load, a minimum). Divisions and
remainders are resolved where the variables' ranges prove that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Select,
    Unary,
    add,
    binary,
    index,
    integer,
    mul,
)
from tunefarm.compiler.expr.walk import axes_of, rewrite
from tunefarm.compiler.types.dtypes import DType

Ranges = Mapping[str, tuple[int, int]]  # inclusive
Atom: TypeAlias = str | Expr


class Affine(NamedTuple):
    """constant + sum(coefficient * atom): terms in order of first appearance, none of them 0."""

    constant: int
    terms: tuple[tuple[Atom, int], ...]

    @property
    def is_constant(self) -> bool:
        """Whether no variable is in it."""
        return not self.terms

    @property
    def divisions(self) -> int:
        """How many of the atoms are no variables."""
        return sum(not isinstance(atom, str) for atom, _ in self.terms)

    def coefficient(self, variable: str) -> int:
        """The number that the variable is multiplied by; 0 if it is not in it."""
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
        """The sum with `scale` times another one."""
        if scale == 0:
            return self
        constant, own = self
        more, terms = other
        constant += scale * more
        if not terms:
            return _made((constant, own))
        if not own:
            return _made((constant, terms if scale == 1 else _times(terms, scale)))
        merged = dict(own)
        for atom, coefficient in terms:
            merged[atom] = merged.get(atom, 0) + scale * coefficient
        if 0 in merged.values():
            return _made((constant, tuple([term for term in merged.items() if term[1]])))
        return _made((constant, tuple(merged.items())))

    def scaled(self, by: int) -> Affine:
        """So many times as much."""
        if by == 1:
            return self
        return _made((self.constant * by, _times(self.terms, by))) if by else _ZERO


_Terms: TypeAlias = tuple[tuple[Atom, int], ...]


def _times(terms: _Terms, by: int) -> _Terms:
    return tuple([(atom, by * coefficient) for atom, coefficient in terms])


_made: Callable[[tuple[int, _Terms]], Affine] = partial(tuple.__new__, Affine)
"""`Affine` of its two fields in half of the time: lowering makes hundreds of thousands."""


@lru_cache(1024)
def _variable(name: str) -> Affine:
    return Affine(0, ((name, 1),))


class Substitution(NamedTuple):
    """Affine forms to put in place of variables, and how to rewrite what is not affine."""

    forms: Mapping[str, Affine]
    rebuild: Callable[[Expr], Expr]


def affine(expr: Expr, ranges: Ranges, under: Substitution | None = None) -> Affine:
    """The affine form of an i64 expression, with the variables of `under` substituted."""
    # No structural patterns: this is where lowering spends its time.
    if isinstance(expr, Index):
        name = expr.name
        if under is not None and (form := under.forms.get(name)) is not None:
            return form
        bounds = ranges.get(name)
        if bounds is not None and bounds[0] == bounds[1]:
            return _made((bounds[0], ()))
        return _variable(name)
    if isinstance(expr, Const):
        return _made((int(expr.value), ()))
    if isinstance(expr, Binary):
        return _affine_binary(expr, ranges, under)
    if isinstance(expr, Unary) and expr.op == "neg":
        return affine(expr.operand, ranges, under).scaled(-1)
    return Affine(0, ((expr if under is None else under.rebuild(expr), 1),))


_ZERO = Affine(0, ())


def _affine_binary(expr: Binary, ranges: Ranges, under: Substitution | None) -> Affine:
    op = expr.op
    if op not in _AFFINE_OPS:
        return Affine(0, ((expr if under is None else under.rebuild(expr), 1),))
    left, other = affine(expr.left, ranges, under), expr.right
    if isinstance(other, Const) and op in _LINEAR_OPS:
        number = int(other.value)
        if op == "mul":
            return left.scaled(number)
        return _made((left.constant + (number if op == "add" else -number), left.terms))
    right = affine(other, ranges, under)
    if op == "add":
        return left.plus(right)
    if op == "sub":
        return left.plus(right, -1)
    if op == "mul":
        if not left.terms:
            return right.scaled(left.constant)
        if not right.terms:
            return left.scaled(right.constant)
        return Affine(0, ((binary("mul", left.to_expr(), right.to_expr()), 1),))
    if op in ("floordiv", "mod"):
        return _divide(op, left, right, ranges)
    return _extreme(op, left, right, ranges)


_LINEAR_OPS = frozenset(("add", "sub", "mul"))
_AFFINE_OPS = frozenset(("add", "sub", "mul", "floordiv", "mod", "min", "max"))


def _divide(op: str, dividend: Affine, divisor: Affine, ranges: Ranges) -> Affine:
    if not divisor.is_constant or divisor.constant <= 0:
        return Affine(0, ((Binary(DType.I64, op, dividend.to_expr(), divisor.to_expr()), 1),))
    d = divisor.constant
    quotient, rest = _split(dividend, d)
    low, high = affine_range(rest, ranges)
    if (turns := low // d) and turns == high // d:
        quotient, rest = quotient.plus(Affine(turns, ())), rest.plus(Affine(-turns * d, ()))
    small = _is_within(rest, d, ranges)
    if op == "mod":
        return rest if small else Affine(0, ((binary("mod", rest.to_expr(), integer(d)), 1),))
    if small:
        return quotient
    again = _divided_again(rest, d, ranges)
    if again is not None:
        return quotient.plus(again)
    return quotient.plus(Affine(0, ((binary("floordiv", rest.to_expr(), integer(d)), 1),)))


def _divided_again(form: Affine, divisor: int, ranges: Ranges) -> Affine | None:
    """x // a // d as x // (a * d), and x % (a * d) // d as x // d % a; None for anything else."""
    if len(form.terms) != 1 or form.constant or form.terms[0][1] != 1:
        return None
    match form.terms[0][0]:
        case Binary(op="floordiv", left=left, right=Const(value=value)) if int(value) > 0:
            return affine(binary("floordiv", left, integer(int(value) * divisor)), ranges)
        case Binary(op="mod", left=left, right=Const(value=value)) if int(value) % divisor == 0:
            whole = binary("floordiv", left, integer(divisor))
            return affine(binary("mod", whole, integer(int(value) // divisor)), ranges)
    return None


def _split(form: Affine, divisor: int) -> tuple[Affine, Affine]:
    """What `divisor` divides evenly, divided, and the rest."""
    even = tuple((atom, c // divisor) for atom, c in form.terms if c % divisor == 0)
    odd = tuple((atom, c) for atom, c in form.terms if c % divisor)
    return Affine(form.constant // divisor, even), Affine(form.constant % divisor, odd)


def _is_within(form: Affine, stop: int, ranges: Ranges) -> bool:
    low, high = affine_range(form, ranges)
    return low >= 0 and high < stop


def rejoined(form: Affine, ranges: Ranges) -> Affine:
    """The form with quotients and rests of one dividend as what they are of: x // d * d + x % d."""
    for atom, factor in form.terms:
        match atom:
            case Binary(op="mod", left=left, right=Const(value=value)) if int(value) > 0:
                quotient = affine(binary("floordiv", left, integer(int(value))), ranges)
                rest = form.plus(quotient, -factor * int(value)).plus(Affine(0, ((atom, -factor),)))
                if rest.divisions == form.divisions - quotient.divisions - 1:
                    return rejoined(rest.plus(affine(left, ranges), factor), ranges)
    return form


def linear(expr: Expr) -> Affine:
    """`expr` as it is written: its sums and multiples, with everything else left as an atom.

    Terms of the same axis, or of the same node, are merged.
    """
    constant = 0
    coefficients: dict[object, int] = {}
    atoms: dict[object, Atom] = {}
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
                atom = node.name if isinstance(node, Index) else node
                key: object = atom if isinstance(atom, str) else id(atom)
                coefficients[key] = coefficients.get(key, 0) + factor
                atoms.setdefault(key, atom)
    terms = tuple((atoms[key], c) for key, c in coefficients.items() if c)
    return Affine(constant, terms)


def simplify_division(op: str, dividend: Expr, divisor: int, ranges: Ranges) -> Expr:
    """`dividend floordiv divisor` or `dividend mod divisor` with the parts that divide evenly
    taken out: (16 * a + b) // 16 is a, and (16 * a + b) % 16 is b, where 0 <= b < 16."""
    quotient, rest = _split(linear(dividend), divisor)
    small = _is_within(rest, divisor, ranges)
    if op == "mod":
        return rest.to_expr() if small else binary("mod", rest.to_expr(), integer(divisor))
    if small:
        return quotient.to_expr()
    return add(quotient.to_expr(), binary("floordiv", rest.to_expr(), integer(divisor)))


def simplify_divisions(expr: Expr, ranges: Ranges) -> Expr:
    """`expr` with every division of an index by a literal simplified, as `simplify_division`."""

    def rule(node: Expr) -> Expr:
        if not isinstance(node, Binary) or node.op not in ("floordiv", "mod"):
            return node
        divisor = node.right
        if node.dtype is not DType.I64 or not isinstance(divisor, Const) or divisor.value < 1:
            return node
        return simplify_division(node.op, node.left, int(divisor.value), ranges)

    return rewrite(expr, rule)


def _extreme(op: str, left: Affine, right: Affine, ranges: Ranges) -> Affine:
    low, high = affine_range(left.plus(right, -1), ranges)
    if high <= 0:
        return left if op == "min" else right
    if low >= 0:
        return right if op == "min" else left
    return Affine(0, ((Binary(DType.I64, op, left.to_expr(), right.to_expr()), 1),))


_UNKNOWN = 1 << 62
_ANY = (-_UNKNOWN, _UNKNOWN)


def affine_range(form: Affine, ranges: Ranges) -> tuple[int, int]:
    """Smallest and largest value, inclusive; +-2**62 stands for unknown."""
    low = high = form.constant
    for atom, coefficient in form.terms:
        a, b = ranges.get(atom, _ANY) if isinstance(atom, str) else expr_range(atom, ranges)
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
            return ranges.get(name, _ANY)
        case Binary(op="mod", right=Const(value=value)) if int(value) > 0:
            return 0, int(value) - 1
        case Binary(op="floordiv", left=left, right=Const(value=value)) if int(value) > 0:
            low, high = expr_range(left, ranges)
            return low // int(value), high // int(value)
        case Binary(op="mod" | "floordiv", left=left, right=Index(name=divisor)):
            (low, high), (least, most) = expr_range(left, ranges), ranges.get(divisor, (-1, -1))
            if low < 0 or least < 0:
                return -_UNKNOWN, _UNKNOWN
            return 0, max(most - 1, 0) if expr.op == "mod" else high
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
        case Select(then=then, otherwise=otherwise):
            a, b = expr_range(then, ranges), expr_range(otherwise, ranges)
            return min(a[0], b[0]), max(a[1], b[1])
        case _:
            return -_UNKNOWN, _UNKNOWN


def is_exact(form: Affine, ranges: Ranges) -> bool:
    """Whether a form is known to take both ends of its range, as its variables take theirs."""
    seen: set[str] = set()
    for atom, _ in form.terms:
        axes = {atom} if isinstance(atom, str) else axes_of(atom)
        if axes & seen:
            return False  # what takes one of them to its end may keep the other from it
        seen |= axes
        match atom:
            case str():
                continue
            case Binary(op="floordiv", left=left, right=Const(value=value)) if int(value) > 0:
                if is_exact(affine(left, ranges), ranges):
                    continue
        return False
    return True


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
        case Binary(op=op, left=left, right=right) if left.dtype is DType.I64 and op in _VERDICTS:
            low, high = affine_range(affine(left, ranges).plus(affine(right, ranges), -1), ranges)
            always, never = _VERDICTS[op](low, high)
            return True if always else False if never else None
        case _:
            return None


# Whether left op right holds always, and whether never, where left - right is in low..high.
_VERDICTS: dict[str, Callable[[int, int], tuple[bool, bool]]] = {
    "lt": lambda low, high: (high < 0, low >= 0),
    "le": lambda low, high: (high <= 0, low > 0),
    "gt": lambda low, high: (low > 0, high <= 0),
    "ge": lambda low, high: (low >= 0, high < 0),
    "eq": lambda low, high: (low == high == 0, low > 0 or high < 0),
    "ne": lambda low, high: (low > 0 or high < 0, low == high == 0),
}
