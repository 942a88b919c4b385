"""Dynamic sizes: integer polynomials over named symbols with bounds.

A dimension of a tensor is an `int` or a `Size`. A Size is never constant: what comes out as a
number is an `int`, so that `isinstance(dimension, int)` asks whether it is known when compiling.
Equal expressions are equal objects: `2 * (b + 1) == b + b + 2`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import gcd, prod
from typing import Any, Final, TypeAlias

import numpy as np

from tunefarm.compiler.errors import ShapeError


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """A size that a model leaves open, and the minimum and maximum that it may have.

    `low` is at least 0; the symbol of equal bounds is the number and no Symbol (`of`).
    """

    name: str
    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ShapeError(
                f"the symbol {self.name!r} cannot have sizes from {self.low} to {self.high}",
                hint="bounds are two numbers, the smaller one first, as in batch:1..8",
            )

    @staticmethod
    def of(name: str, low: int, high: int) -> Dimension:
        """The symbol as a dimension; raises `ShapeError` for bounds that hold no number."""
        return low if low == high and low >= 0 else Size._of({(Symbol(name, low, high),): 1})

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """A function of two sizes that is no polynomial: `//` (floor), `%`, `min` or `max`."""

    name: str
    left: str  # strings order and print; the operands compute
    right: str
    operands: tuple[Dimension, Dimension]

    def __str__(self) -> str:
        if self.name in _PREFIX:
            return f"{self.name}({self.left}, {self.right})"
        return f"({self.left}) {self.name} ({self.right})"


Atom: TypeAlias = Symbol | Function
_Terms: TypeAlias = Mapping[tuple[Atom, ...], int]
_PREFIX = ("min", "max")
_MOST_TRIED = 2**13


@dataclass(frozen=True)
class Size:
    """A sum of products of atoms with integer factors, in one order; `terms` never are a number."""

    terms: tuple[tuple[tuple[Atom, ...], int], ...]

    @staticmethod
    def _of(terms: _Terms) -> Dimension:
        kept = {atoms: factor for atoms, factor in terms.items() if factor}
        if not kept or list(kept) == [()]:
            return kept.get((), 0)
        return Size(tuple(sorted(kept.items(), key=lambda item: _order(item[0]))))

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that it depends on."""
        found: set[Symbol] = set()
        for atoms, _ in self.terms:
            for atom in atoms:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    found.update(*(symbols_of(operand) for operand in atom.operands))
        return frozenset(found)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The minimum and maximum, from those of the symbols.

        They are reached where the symbols have few values. Elsewhere they need not be: those of
        sums as s - s // 2 are bounded one by one.
        """
        counts = [symbol.high - symbol.low + 1 for symbol in self.symbols]
        if not self._is_monotonic and prod(counts) <= _MOST_TRIED:
            found: Any = self.value(_grid(self.symbols))
            return found.min(), found.max()
        low = high = 0
        for atoms, factor in self.terms:
            corners = [factor * prod(c) for c in product(*(_atom_bounds(atom) for atom in atoms))]
            low, high = low + min(corners), high + max(corners)
        return low, high

    @property
    def _is_monotonic(self) -> bool:
        """Whether it is one atom, moved and scaled, which is a symbol, or rises or falls with one
        operand alone: the ends of its operand give its own."""
        if len(self.open_terms) != 1 or len(self.open_terms[0][0]) != 1:
            return False
        (atom,) = self.open_terms[0][0]
        return isinstance(atom, Symbol) or (atom.name != "%" and isinstance(atom.operands[1], int))

    @cached_property
    def open_terms(self) -> tuple[tuple[tuple[Atom, ...], int], ...]:
        """Its summands that are no numbers: two sizes that share them differ by a number."""
        return tuple(term for term in self.terms if term[0])

    @property
    def symbol(self) -> Symbol | None:
        """The symbol that it is, None where it is more."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom = self.terms[0][0][0]
            return atom if isinstance(atom, Symbol) else None
        return None

    def value(self, symbols: Mapping[str, int]) -> int:
        """What it is for these values of the symbols; `KeyError` for one that is not there."""
        return sum(
            factor * prod(_atom_value(atom, symbols) for atom in atoms)
            for atoms, factor in self.terms
        )

    def __add__(self, other: Dimension) -> Dimension:
        total = Counter(dict(self.terms))
        total.update(_terms(other))
        return _filled_up(Size._of(total))

    def __mul__(self, other: Dimension) -> Dimension:
        total: Counter[tuple[Atom, ...]] = Counter()
        for (left, a), (right, b) in product(self.terms, _terms(other).items()):
            total[tuple(sorted((*left, *right), key=_atom_order))] += a * b
        return Size._of(total)

    def __neg__(self) -> Dimension:
        return self * -1

    def __sub__(self, other: Dimension) -> Dimension:
        return self + other * -1

    def __rsub__(self, other: int) -> Dimension:
        return self * -1 + other

    def __floordiv__(self, other: Dimension) -> Dimension:
        return divide(self, other)

    def __rfloordiv__(self, other: int) -> Dimension:
        return divide(other, self)

    def __mod__(self, other: Dimension) -> Dimension:
        return remainder(self, other)

    def __rmod__(self, other: int) -> Dimension:
        return remainder(other, self)

    __radd__ = __add__
    __rmul__ = __mul__

    def __index__(self) -> int:
        raise ShapeError(f"the size {self} is not known before run time")

    __int__ = __index__

    def __bool__(self) -> bool:
        low, high = self.bounds
        if low > 0 or high < 0:
            return True
        raise ShapeError(f"whether the size {self} is 0 is not known before run time")

    def __str__(self) -> str:
        return " + ".join(_term_text(atoms, factor) for atoms, factor in self.terms)


Dimension: TypeAlias = int | Size
"""The extent of an axis: a number, or a dynamic size."""

NO_SYMBOLS: Final[frozenset[Symbol]] = frozenset()


def symbols_of(dimension: Dimension) -> frozenset[Symbol]:
    """The symbols that a dimension depends on."""
    return dimension.symbols if isinstance(dimension, Size) else NO_SYMBOLS


def symbols_in(shape: Iterable[Dimension]) -> frozenset[Symbol]:
    """The symbols that any of the dimensions depends on."""
    return NO_SYMBOLS.union(*map(symbols_of, shape))


def bounds_of(dimension: Dimension) -> tuple[int, int]:
    """The minimum and maximum value of a dimension, see `Size.bounds`."""
    return dimension.bounds if isinstance(dimension, Size) else (dimension, dimension)


def value_of(dimension: Dimension, symbols: Mapping[str, int]) -> int:
    """What a dimension is for these values of the symbols."""
    return dimension.value(symbols) if isinstance(dimension, Size) else dimension


def replaced(dimension: Dimension, by: Mapping[Symbol, Dimension]) -> Dimension:
    """The dimension with other dimensions for some of its symbols."""
    if isinstance(dimension, int):
        return dimension
    total: Dimension = 0
    for atoms, factor in dimension.terms:
        total = total + product_of((factor, *(_replaced_atom(atom, by) for atom in atoms)))
    return total


def _replaced_atom(atom: Atom, by: Mapping[Symbol, Dimension]) -> Dimension:
    if isinstance(atom, Symbol):
        return by.get(atom, Symbol.of(atom.name, atom.low, atom.high))
    left, right = (replaced(operand, by) for operand in atom.operands)
    return {"//": divide, "%": remainder, "min": smaller, "max": greater}[atom.name](left, right)


def static_shape(shape: Sequence[Dimension]) -> tuple[int, ...] | None:
    """A shape of numbers; None where one of its dimensions is not known before run time."""
    numbers = tuple(dimension for dimension in shape if isinstance(dimension, int))
    return numbers if len(numbers) == len(shape) else None


def product_of(dimensions: Iterable[Dimension]) -> Dimension:
    """The product of dimensions."""
    result: Dimension = 1
    for dimension in dimensions:
        result = result * dimension
    return result


def divide(left: Dimension, right: Dimension) -> Dimension:
    """The quotient, rounded down; `ShapeError` where the divisor may be less than 1.

    What divides leaves the fraction, and fractions of fractions become one, so that sizes that
    windows leave one after the other are equal however they are written: (s // 5 - 2) // 2 and
    (s - 10) // 10.
    """
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    _check_divisor(left, right)
    exact = _exact_quotient(_terms(left), _terms(right))
    if exact is not None:
        return exact
    return _divided(left, right) if isinstance(right, int) else _function("//", left, right)


def _divided(left: Dimension, number: int) -> Dimension:
    terms = _terms(left)
    constant = terms.get((), 0)
    outside = {atoms: f // number for atoms, f in terms.items() if atoms and f % number == 0}
    inside = {atoms: f for atoms, f in terms.items() if atoms and f % number}
    if len(inside) == 1:
        ((atoms, factor),) = inside.items()
        fraction = atoms[0] if len(atoms) == 1 and factor == 1 else None
        if isinstance(fraction, Function) and fraction.name == "//":
            numerator, by = fraction.operands
            if isinstance(by, int):
                return Size._of(outside) + divide(numerator + constant * by, by * number)
    outside[()] = constant // number
    inside[()] = constant % number
    return Size._of(outside) + _function("//", Size._of(inside), number)


def remainder(left: Dimension, right: Dimension) -> Dimension:
    """What division leaves; `ShapeError` where the divisor may be less than 1.

    Multiples of a number are no part of it, so that (7 - s % 7) % 7 is -s % 7.
    """
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    _check_divisor(left, right)
    if isinstance(right, int):
        left = _less_multiples(left, right)
        if isinstance(left, int):
            return left % right
    if _exact_quotient(_terms(left), _terms(right)) is not None:
        return 0
    return _function("%", left, right)


def _less_multiples(left: Dimension, number: int) -> Dimension:
    """The dividend without what no remainder depends on: multiples, and remainders of its own."""
    total: Dimension = 0
    for atoms, factor in _terms(left).items():
        rest = factor % number if factor > 0 or not atoms else -(-factor % number)
        match atoms:
            case (Function(name="%", operands=(inner, int() as by)),) if by % number == 0:
                total = total + inner * rest
            case _:
                total = total + Size._of({atoms: rest})
    return total if total == left else _less_multiples(total, number)


def _filled_up(size: Dimension) -> Dimension:
    """The size as a multiple, where it is filled up to one: s + -s % 7 is 7 * ceil(s / 7).

    k * (t % n) is k * t - k * n * (t // n), which is taken where t cancels out, and the other way
    round: 7 * ceil(s / 7) - s is -s % 7. What is filled up to a minimum is the greater of both:
    s + max(7 - s, 0) is max(7, s).
    """
    for atoms, factor in _terms(size).items():
        match atoms:
            case (Function(name="%", operands=(Size() as left, int() as number)),):
                same = remainder(left * 2, number) == 0  # as of the opposite, which may cancel out
                for term in (left, -left) if same else (left,):
                    found = _exchanged(size, atoms, term * factor)
                    if found is not None:
                        return found + divide(term, number) * (-factor * number)
            case (Function(name="//", operands=(Size() as left, int() as number)),) if (
                factor % number == 0
            ):
                by = factor // number
                found = _exchanged(size, atoms, left * by)
                if found is not None:
                    return found + remainder(left, number) * -by
            case (Function(name="min" | "max" as name, operands=(left, right) as operands),):
                for operand in operands:
                    moved = _taken_back(operand, size, factor)
                    if isinstance(moved, Size):
                        found = size + Size._of({atoms: -factor}) + moved * factor
                        return found + _extremum(name, left - moved, right - moved) * factor
                for others, by in _terms(size).items():
                    above = _above(name, operands, others) if by == -factor else None
                    if above is not None:
                        rest = size + Size._of({atoms: -factor, others: factor})
                        return rest + above * factor
    return size


def _taken_back(operand: Dimension, size: Dimension, factor: int) -> Dimension:
    """The negative terms of an operand that a size has as often with the other sign."""
    terms = _terms(size)
    return Size._of(
        {
            atoms: own
            for atoms, own in _terms(operand).items()
            if atoms and own < 0 and terms.get(atoms, 0) == -own * factor
        }
    )


def _above(
    name: str, operands: tuple[Dimension, Dimension], others: tuple[Atom, ...]
) -> Dimension | None:
    """By how much an extremum is above another one, if that is of the same operands, moved."""
    match others:
        case (Function(name=same, operands=(left, right)),) if same == name:
            for first, second in (operands, operands[::-1]):
                if first - left == second - right:
                    return first - left
    return None


def _exchanged(size: Dimension, atoms: tuple[Atom, ...], more: Dimension) -> Dimension | None:
    """The size without one of its terms and with `more`, all terms of which cancel out."""
    rest = {key: factor for key, factor in _terms(size).items() if key != atoms}
    total = Counter(rest)
    total.update(_terms(more))
    found = Size._of(total)
    gone = _open_terms(found) + _open_terms(more) == _open_terms(Size._of(rest))
    return found if gone else None


def _open_terms(dimension: Dimension) -> int:
    """How many terms of a dimension are no number."""
    return sum(1 for atoms in _terms(dimension) if atoms)


def quotient(left: Dimension, right: Dimension) -> Dimension | None:
    """left / right where that is a size for all values of the symbols; None where it is not."""
    if isinstance(left, int) and isinstance(right, int):
        return left // right if right and left % right == 0 else None
    return _exact_quotient(_terms(left), _terms(right)) if right != 0 else None


def smaller(left: Dimension, right: Dimension) -> Dimension:
    """The smaller of two dimensions, which bounds may settle."""
    return _extremum("min", left, right)


def greater(left: Dimension, right: Dimension) -> Dimension:
    """The greater of two dimensions, which bounds may settle."""
    return _extremum("max", left, right)


def _extremum(name: str, left: Dimension, right: Dimension) -> Dimension:
    low, high = bounds_of(left - right)
    if high <= 0:
        return left if name == "min" else right
    if low >= 0:
        return right if name == "min" else left
    left, right = sorted((left, right), key=str)
    return _function(name, left, right)


def _function(name: str, left: Dimension, right: Dimension) -> Dimension:
    function = Function(name, str(left), str(right), (left, right))
    low, high = _atom_bounds(function)
    return low if low == high else Size._of({(function,): 1})


def _check_divisor(left: Dimension, right: Dimension) -> None:
    if bounds_of(right)[0] < 1:
        raise ShapeError(f"{left} cannot be divided by {right}, which may be less than 1")


def _exact_quotient(left: _Terms, right: _Terms) -> Dimension | None:
    """left / right where that is a size whatever the symbols are: a division of polynomials, whose
    first summands are those of the highest degree."""
    if not right:
        return None
    rest = {atoms: factor for atoms, factor in left.items() if factor}
    result: dict[tuple[Atom, ...], int] = {}
    divisor = min(right, key=_order)
    while rest:
        first = min(rest, key=_order)
        atoms = _without(first, divisor)
        if atoms is None or rest[first] % right[divisor]:
            return None
        result[atoms] = factor = rest[first] // right[divisor]
        for others, by in right.items():
            key = tuple(sorted((*atoms, *others), key=_atom_order))
            rest[key] = rest.get(key, 0) - factor * by
            if not rest[key]:
                del rest[key]
    return Size._of(result)


def _without(atoms: tuple[Atom, ...], others: tuple[Atom, ...]) -> tuple[Atom, ...] | None:
    """A product without some of its factors; None where it does not have them."""
    left = list(atoms)
    for atom in others:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _terms(dimension: Dimension) -> _Terms:
    return dict(dimension.terms) if isinstance(dimension, Size) else {(): dimension}


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    (low, high), (least, most) = (bounds_of(operand) for operand in atom.operands)
    if atom.name == "%":
        return (low, high) if low >= 0 and high < least else (0, most - 1)
    corners = [_FUNCTIONS[atom.name](a, b) for a in (low, high) for b in (least, most)]
    return min(corners), max(corners)


def _atom_value(atom: Atom, symbols: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        return symbols[atom.name]
    left, right = (value_of(operand, symbols) for operand in atom.operands)
    return _FUNCTIONS[atom.name](left, right)


_FUNCTIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
    "min": lambda left, right: left + (right - left) * (right < left),  # of arrays as well
    "max": lambda left, right: left + (right - left) * (right > left),
}


def _grid(symbols: Iterable[Symbol]) -> dict[str, Any]:
    """All values that the symbols have together, an axis each, as numbers without a limit."""
    names = sorted(symbols)
    ranges = (np.array(range(symbol.low, symbol.high + 1), object) for symbol in names)
    axes = np.meshgrid(*ranges, indexing="ij", sparse=True)
    return {symbol.name: values for symbol, values in zip(names, axes, strict=True)}


def _atom_order(atom: Atom) -> str:
    return str(atom)


def _order(atoms: tuple[Atom, ...]) -> tuple[int, list[str]]:
    return -len(atoms), [str(atom) for atom in atoms]


def _term_text(atoms: tuple[Atom, ...], factor: int) -> str:
    text = "*".join(str(a) if isinstance(a, Symbol) else f"({a})" for a in atoms)
    if not atoms:
        return str(factor)
    return text if factor == 1 else f"{factor}*{text}"


def common_factor(dimension: Dimension) -> int:
    """The largest number that divides the dimension whatever its symbols are."""
    return gcd(*_terms(dimension).values())
