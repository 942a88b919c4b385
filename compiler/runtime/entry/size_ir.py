"""Dimensions in LLVM IR: what sizes are, computed of their symbols."""

from __future__ import annotations

from dataclasses import dataclass, field

from tunefarm.compiler.runtime.entry.ir_body import IrBody
from tunefarm.compiler.types.sizes import Atom, Dimension, Function, bounds_of


@dataclass(slots=True)
class SizeEmitter:
    """Computes dimensions; `known` are the atoms that have been computed."""

    body: IrBody
    known: dict[Atom, str] = field(default_factory=dict)

    def dimension(self, dimension: Dimension) -> str:
        """The operand that is the dimension: a number or a value's name."""
        if isinstance(dimension, int):
            return str(dimension)
        total = ""
        for atoms, factor in dimension.terms:
            product = str(factor)
            for atom in atoms:
                product = self._times(product, self._atom(atom))
            total = self.body.value(f"add i64 {total}, {product}") if total else product
        return total

    def _times(self, left: str, right: str) -> str:
        return right if left == "1" else self.body.value(f"mul i64 {left}, {right}")

    def _atom(self, atom: Atom) -> str:
        if atom not in self.known:
            assert isinstance(atom, Function)  # every symbol has a source
            self.known[atom] = self._function(atom)
        return self.known[atom]

    def _function(self, atom: Function) -> str:
        left, right = (self.dimension(operand) for operand in atom.operands)
        if atom.name in ("min", "max"):
            order = "slt" if atom.name == "min" else "sgt"
            first = self.body.value(f"icmp {order} i64 {left}, {right}")
            return self.body.value(f"select i1 {first}, i64 {left}, i64 {right}")
        operation = "sdiv" if atom.name == "//" else "srem"
        found = self.body.value(f"{operation} i64 {left}, {right}")
        if bounds_of(atom.operands[0])[0] >= 0:
            return found
        rest = self.body.value(f"srem i64 {left}, {right}")  # rounded to zero: fix what is below
        below = self.body.value(f"icmp slt i64 {rest}, 0")
        change = "-1" if atom.name == "//" else right
        mended = self.body.value(f"add i64 {found}, {change}")
        return self.body.value(f"select i1 {below}, i64 {mended}, i64 {found}")
