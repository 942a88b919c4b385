"""Lines of an LLVM function that is written as text, fresh names for its values, dimensions, and
loops that copy rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tunefarm.compiler.runtime.spec.size_table import PortLayout
from tunefarm.compiler.types.sizes import Atom, Dimension, Function, bounds_of


class IrBody:
    """The body of one function; `str` of it is the text."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._count = 0

    def line(self, text: str) -> None:
        """Append an instruction, or a label."""
        self._lines.append(f"  {text}")

    def text(self, lines: str) -> None:
        """Append lines that are indented already."""
        self._lines.append(lines)

    def value(self, text: str) -> str:
        """Append an instruction that gives a value; its name."""
        name = f"%v{self._count}"
        self._count += 1
        self.line(f"{name} = {text}")
        return name

    def new_label(self) -> str:
        """A fresh name for a label."""
        self._count += 1
        return f"b{self._count}"

    def __str__(self) -> str:
        return "\n".join(self._lines)


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


def copy_function(
    name: str, layout: PortLayout, out: bool, operand: Callable[[IrBody, Dimension], str]
) -> str:
    """The function (to, from, numbers) that copies rows, `out` of their padded place or into it.

    `operand` writes what a dimension is, of the numbers.
    """
    body = IrBody()
    body.line("br label %begin")
    body.line("begin:")
    row = operand(body, layout.row)
    counts = [operand(body, level.count) for level in layout.levels]
    dense = [operand(body, level.dense) for level in layout.levels]
    target, source, before = "%to", "%from", "begin"
    for depth, level in enumerate(layout.levels):
        body.line(f"br label %head{depth}")
        body.line(f"head{depth}:")
        body.line(f"%i{depth} = phi i64 [ 0, %{before} ], [ %after{depth}, %next{depth} ]")
        more = body.value(f"icmp slt i64 %i{depth}, {counts[depth]}")
        leave = f"next{depth - 1}" if depth else "done"
        body.line(f"br i1 {more}, label %body{depth}, label %{leave}")
        body.line(f"body{depth}:")
        steps = (dense[depth], str(level.padded)) if out else (str(level.padded), dense[depth])
        target = _moved(body, target, f"%i{depth}", steps[0])
        source = _moved(body, source, f"%i{depth}", steps[1])
        before = f"body{depth}"
    body.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {row}, i1 false)")
    innermost = len(layout.levels) - 1
    body.line(f"br label %next{innermost}" if layout.levels else "br label %done")
    for depth in reversed(range(len(layout.levels))):
        body.line(f"next{depth}:")
        body.line(f"%after{depth} = add i64 %i{depth}, 1")
        body.line(f"br label %head{depth}")
    body.line("done:")
    body.line("ret void")
    return f"define internal void @{name}(ptr %to, ptr %from, ptr %numbers) {{\n{body}\n}}\n"


def _moved(body: IrBody, pointer: str, index: str, step: str) -> str:
    offset = body.value(f"mul i64 {index}, {step}")
    return body.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")
