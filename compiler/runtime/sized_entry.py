"""The entry functions of a model with run-time sizes, round the entry of its padded program.

    void tunefarm_sizes(symbols, numbers)
    void tunefarm_run_sized(inputs, outputs, constants, arena, runtime)

The first computes the vector of `SizeTable` from the symbols, which must be within their bounds.
The second takes the tables that the padded program takes, with more behind: `inputs` goes on with
the vectors of symbols and numbers, then a dense array for each input that may be smaller than its
place, and `outputs` with one for each such output. It copies the rows of inputs into their places,
runs the program, reads the symbols that it has computed, and copies the rows of outputs out of
their places. An array that is its own place, the same pointer twice, is not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compiler.runtime.executable_spec import ENTRY_SYMBOL
from compiler.runtime.ir_body import IrBody
from compiler.runtime.port_layout import PortLayout, layout_of
from compiler.runtime.size_table import SizeTable, copied_ports
from compiler.types.signature import ResultSource, Signature, SizedPort
from compiler.types.sizes import Atom, Dimension, Function, Size, bounds_of

SIZES_SYMBOL = "tunefarm_sizes"
SIZED_ENTRY_SYMBOL = "tunefarm_run_sized"


@dataclass(frozen=True, slots=True)
class SizedTables:
    """Where things stand in the tables of the sized entry; positions are those of the graph's."""

    symbols: int
    numbers: int
    dense_inputs: dict[str, int]
    dense_outputs: dict[str, int]

    @staticmethod
    def of(signature: Signature, inputs: int, outputs: int) -> SizedTables:
        """The places behind so many inputs and outputs of the graph."""
        dense_inputs = copied_ports(signature.inputs)
        dense_outputs = copied_ports(signature.outputs)
        return SizedTables(
            inputs,
            inputs + 1,
            {port.name: inputs + 2 + i for i, port in enumerate(dense_inputs)},
            {port.name: outputs + i for i, port in enumerate(dense_outputs)},
        )


def sized_entry_ir(signature: Signature, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """LLVM IR of both functions behind `entry_ir`; `inputs` and `outputs` are the graph's."""
    table = SizeTable.of(signature)
    copies = _Copies(table)
    entry = _sized_entry(signature, inputs, outputs, copies)
    return f"{_sizes_function(signature, table)}{''.join(copies.functions.values())}{entry}"


def _sizes_function(signature: Signature, table: SizeTable) -> str:
    emitter = _SizeEmitter(IrBody())
    for number, source in enumerate(signature.sources):
        place = emitter.body.value(f"getelementptr i64, ptr %symbols, i64 {number}")
        emitter.known[source.symbol] = emitter.body.value(f"load i64, ptr {place}")
    for number, dimension in enumerate(table.dimensions):
        value = emitter.dimension(dimension)
        place = emitter.body.value(f"getelementptr i64, ptr %numbers, i64 {number}")
        emitter.body.line(f"store i64 {value}, ptr {place}")
    emitter.body.line("ret void")
    return f"define void @{SIZES_SYMBOL}(ptr %symbols, ptr %numbers) {{\n{emitter.body}\n}}\n"


@dataclass(slots=True)
class _SizeEmitter:
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
        rest = self.body.value(f"srem i64 {left}, {right}")  # rounded to zero: mend what is below
        below = self.body.value(f"icmp slt i64 {rest}, 0")
        change = "-1" if atom.name == "//" else right
        mended = self.body.value(f"add i64 {found}, {change}")
        return self.body.value(f"select i1 {below}, i64 {mended}, i64 {found}")


class _Copies:
    """A function for each way in which rows are copied, `functions` by name."""

    def __init__(self, table: SizeTable) -> None:
        self._table = table
        self._names: dict[tuple[PortLayout, bool], str] = {}
        self.functions: dict[str, str] = {}

    def name(self, port: SizedPort, *, out: bool) -> str:
        """The function (to, from, numbers) that copies the port's rows, `out` of its place."""
        key = layout_of(port), out
        if key not in self._names:
            name = self._names[key] = f"copy_rows.{len(self._names)}"
            self.functions[name] = self._function(name, *key)
        return self._names[key]

    def _function(self, name: str, layout: PortLayout, out: bool) -> str:
        body = IrBody()
        body.line("br label %begin")
        body.line("begin:")
        row = self._operand(body, layout.row)
        counts = [self._operand(body, level.count) for level in layout.levels]
        dense = [self._operand(body, level.dense) for level in layout.levels]
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
        body.line(
            f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {row}, i1 false)"
        )
        innermost = len(layout.levels) - 1
        body.line(f"br label %next{innermost}" if layout.levels else "br label %done")
        for depth in reversed(range(len(layout.levels))):
            body.line(f"next{depth}:")
            body.line(f"%after{depth} = add i64 %i{depth}, 1")
            body.line(f"br label %head{depth}")
        body.line("done:")
        body.line("ret void")
        return f"define internal void @{name}(ptr %to, ptr %from, ptr %numbers) {{\n{body}\n}}\n"

    def _operand(self, body: IrBody, dimension: Dimension) -> str:
        if not isinstance(dimension, Size):
            return str(dimension)
        number = self._table.numbers[dimension]
        place = body.value(f"getelementptr i64, ptr %numbers, i64 {number}")
        return body.value(f"load i64, ptr {place}")


def _moved(body: IrBody, pointer: str, index: str, step: str) -> str:
    offset = body.value(f"mul i64 {index}, {step}")
    return body.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")


def _sized_entry(
    signature: Signature, inputs: Sequence[str], outputs: Sequence[str], copies: _Copies
) -> str:
    tables = SizedTables.of(signature, len(inputs), len(outputs))
    body = IrBody()
    numbers = _entry_of(body, "%inputs", tables.numbers)
    for count, port in enumerate(copied_ports(signature.inputs)):
        place = _entry_of(body, "%inputs", inputs.index(port.name))
        dense = _entry_of(body, "%inputs", tables.dense_inputs[port.name])
        _copy_unless_same(body, f"in{count}", copies.name(port, out=False), place, dense, numbers)
    arguments = "ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %runtime"
    body.line(f"call void @{ENTRY_SYMBOL}({arguments})")
    _read_results(body, signature, outputs, tables)
    for count, port in enumerate(copied_ports(signature.outputs)):
        place = _entry_of(body, "%outputs", outputs.index(port.name))
        dense = _entry_of(body, "%outputs", tables.dense_outputs[port.name])
        _copy_unless_same(body, f"out{count}", copies.name(port, out=True), dense, place, numbers)
    body.line("ret void")
    return f"define void @{SIZED_ENTRY_SYMBOL}({arguments}) {{\n{body}\n}}\n"


def _entry_of(body: IrBody, table: str, number: int) -> str:
    slot = body.value(f"getelementptr ptr, ptr {table}, i64 {number}")
    return body.value(f"load ptr, ptr {slot}")


def _copy_unless_same(
    body: IrBody, label: str, function: str, target: str, source: str, numbers: str
) -> None:
    same = body.value(f"icmp eq ptr {target}, {source}")
    body.line(f"br i1 {same}, label %{label}.done, label %{label}.copy")
    body.line(f"{label}.copy:")
    body.line(f"call void @{function}(ptr {target}, ptr {source}, ptr {numbers})")
    body.line(f"br label %{label}.done")
    body.line(f"{label}.done:")


def _read_results(
    body: IrBody, signature: Signature, outputs: Sequence[str], tables: SizedTables
) -> None:
    """Store the symbols that the program has computed, kept within bounds, and what they change.

    Who made the call sees whether one was out of bounds: the output itself stays as it is.
    """
    found = [(i, s) for i, s in enumerate(signature.sources) if isinstance(s, ResultSource)]
    if not found:
        return
    symbols = _entry_of(body, "%inputs", tables.symbols)
    for number, source in found:
        place = _entry_of(body, "%outputs", outputs.index(source.output))
        element = body.value(f"getelementptr i64, ptr {place}, i64 {source.position}")
        value = body.value(f"load i64, ptr {element}")
        for order, bound in (("slt", source.symbol.low), ("sgt", source.symbol.high)):
            outside = body.value(f"icmp {order} i64 {value}, {bound}")
            value = body.value(f"select i1 {outside}, i64 {bound}, i64 {value}")
        slot = body.value(f"getelementptr i64, ptr {symbols}, i64 {number}")
        body.line(f"store i64 {value}, ptr {slot}")
    numbers = _entry_of(body, "%inputs", tables.numbers)
    body.line(f"call void @{SIZES_SYMBOL}(ptr {symbols}, ptr {numbers})")
