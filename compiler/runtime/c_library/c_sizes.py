"""Run-time sizes in C: members of the struct, and the conditions that a run checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tunefarm.compiler.runtime.c_library.c_interface import CInterface, CPort, in_comment
from tunefarm.compiler.runtime.spec.size_table import SizeTable
from tunefarm.compiler.types.signature import (
    AxisSource,
    ResultSource,
    Signature,
    SizedPort,
    ValueSource,
)
from tunefarm.compiler.types.sizes import Dimension, Size


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """A condition in C under which a run is refused, and what its error says."""

    condition: str
    text: str


@dataclass(frozen=True, slots=True)
class CSizes:
    """What C code knows of a signature; ports are in the interface's order."""

    interface: CInterface
    signature: Signature
    table: SizeTable

    @staticmethod
    def of(interface: CInterface) -> CSizes:
        """The sizes of an interface that has a signature."""
        assert interface.signature is not None
        return CSizes(interface, interface.signature, SizeTable.of(interface.signature))

    @property
    def ports(self) -> list[tuple[CPort, SizedPort]]:
        """Inputs, then outputs."""
        return [*self.inputs, *self.outputs]

    @property
    def inputs(self) -> list[tuple[CPort, SizedPort]]:
        """Each input as C sees it, with its sizes."""
        return list(zip(self.interface.inputs, self.signature.inputs, strict=True))

    @property
    def outputs(self) -> list[tuple[CPort, SizedPort]]:
        """Each output as C sees it, with its sizes."""
        return list(zip(self.interface.outputs, self.signature.outputs, strict=True))

    def operand(self, dimension: Dimension) -> str:
        """A dimension as C computes it from the vector `numbers`."""
        if isinstance(dimension, Size):
            return f"numbers[{self.table.numbers[dimension]}]"
        return str(dimension)

    def symbol(self, number: int) -> str:
        """Where a symbol is read, once no pointer is null; the maximum, if a run computes it."""
        members = {port.name: port.member for port in self.interface.inputs}
        match self.signature.sources[number]:
            case AxisSource(_, name, axis):
                return f"io->{members[name]}_shape[{axis}]"
            case ValueSource(_, name, position):
                return f"(int64_t)io->{members[name]}[{position}]"
            case ResultSource(symbol, _, _):
                return str(symbol.high)

    def bounds(self) -> list[SizeCheck]:
        """Symbols out of bounds, before sizes are computed of them."""
        checks = []
        for number, source in enumerate(self.signature.sources):
            if isinstance(source, ResultSource):
                continue
            low, high, at = source.symbol.low, source.symbol.high, f"symbols[{number}]"
            text = f"{source.symbol} is out of bounds in {source.place}: {low} to {high}"
            checks.append(SizeCheck(f"{at} < {low} || {at} > {high}", text))
        return checks

    def relations(self) -> list[SizeCheck]:
        """Shapes that do not fit the symbols, and equalities that do not hold."""
        checks = [
            SizeCheck(
                f"{self.operand(item.left)} != {self.operand(item.right)}",
                f"{item.left} and {item.right} must be equal: {item.reason}",
            )
            for item in self.signature.equalities
        ]
        for port, sized in self.inputs:
            if sized.symbols:
                wrong = " || ".join(
                    f"io->{port.member}_shape[{axis}] != {self.operand(dimension)}"
                    for axis, dimension in enumerate(sized.shape)
                )
                text = f"the shape of input {port.name!r} is not the {sized} of the other sizes"
                checks.append(SizeCheck(wrong, text))
        return checks

    def results(self, place: dict[str, str]) -> Iterator[SizeCheck]:
        """What a run has found of its arguments; `place` is where graph outputs are, as i64."""
        for check in self.signature.checks:
            wrong = f"any({place[check.output]}, {self._count(check.output)})"
            yield SizeCheck(wrong, check.message)
        for source in self.signature.sources:
            if isinstance(source, ResultSource):
                value = f"{place[source.output]}[{source.position}]"
                low, high = source.symbol.low, source.symbol.high
                text = f"the computed size {source.symbol} is out of bounds: {low} to {high}"
                yield SizeCheck(f"{value} < {low} || {value} > {high}", text)

    def _count(self, output: str) -> int:
        return dict(self.interface.computed)[output].size

    def members(self, port: CPort, sized: SizedPort, kind: str) -> list[str]:
        """The struct's members of a port: its pointer, its shape if that is open, and its rank."""
        const = "const " if kind == "input" else ""
        each = ", each 0 or 1" if port.c_type == "bool" else ""
        most = "at most " if sized.is_dynamic else ""
        text = self.signature.port_text(sized)
        comment = f"{kind} {in_comment(port.name)}: {text}, {most}{port.type.bytes} bytes{each}"
        lines = [f"    /* {comment} */", f"    {const}{port.c_type} *{port.member};"]
        if sized.is_dynamic:
            lines.append(f"    int64_t {port.member}_shape[{max(1, sized.rank)}];")
        if sized.others:
            lines.append(
                f"    int64_t {port.member}_rank; /* the number of its dimensions in use */"
            )
        return lines
