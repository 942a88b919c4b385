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

from tunefarm.compiler.runtime.entry.ir_body import IrBody, SizeEmitter
from tunefarm.compiler.runtime.entry.row_copies import copy_function
from tunefarm.compiler.runtime.spec.executable_spec import (
    ENTRY_SYMBOL,
    SIZED_ENTRY_SYMBOL,
    SIZES_SYMBOL,
)
from tunefarm.compiler.runtime.spec.port_layout import PortLayout, layout_of
from tunefarm.compiler.runtime.spec.size_table import SizeTable, copied_ports
from tunefarm.compiler.types.signature import ResultSource, Signature, SizedPort
from tunefarm.compiler.types.sizes import Dimension, Size


def sized_entry_ir(signature: Signature, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """LLVM IR of both functions behind `entry_ir`; `inputs` and `outputs` are the graph's.

    A program whose sizes are all fixed has neither: its arrays are their own places.
    """
    if signature.is_fixed:
        return ""
    table = SizeTable.of(signature)
    copies = _Copies(table)
    entry = _sized_entry(signature, inputs, outputs, copies)
    return f"{_sizes_function(signature, table)}{''.join(copies.functions.values())}{entry}"


def _sizes_function(signature: Signature, table: SizeTable) -> str:
    emitter = SizeEmitter(IrBody())
    for number, source in enumerate(signature.sources):
        place = emitter.body.value(f"getelementptr i64, ptr %symbols, i64 {number}")
        emitter.known[source.symbol] = emitter.body.value(f"load i64, ptr {place}")
    for number, dimension in enumerate(table.dimensions):
        value = emitter.dimension(dimension)
        place = emitter.body.value(f"getelementptr i64, ptr %numbers, i64 {number}")
        emitter.body.line(f"store i64 {value}, ptr {place}")
    emitter.body.line("ret void")
    return f"define void @{SIZES_SYMBOL}(ptr %symbols, ptr %numbers) {{\n{emitter.body}\n}}\n"


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
            self.functions[name] = copy_function(name, *key, self._operand)
        return self._names[key]

    def _operand(self, body: IrBody, dimension: Dimension) -> str:
        if not isinstance(dimension, Size):
            return str(dimension)
        number = self._table.numbers[dimension]
        place = body.value(f"getelementptr i64, ptr %numbers, i64 {number}")
        return body.value(f"load i64, ptr {place}")


def _sized_entry(
    signature: Signature, inputs: Sequence[str], outputs: Sequence[str], copies: _Copies
) -> str:
    body = IrBody()
    symbols = len(inputs)  # in the table, and numbers and dense arrays behind it
    numbers = _entry_of(body, "%inputs", symbols + 1)
    for count, port in enumerate(copied_ports(signature.inputs)):
        place = _entry_of(body, "%inputs", inputs.index(port.name))
        dense = _entry_of(body, "%inputs", symbols + 2 + count)
        _copy_unless_same(body, f"in{count}", copies.name(port, out=False), place, dense, numbers)
    arguments = "ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %runtime"
    body.line(f"call void @{ENTRY_SYMBOL}({arguments})")
    _read_results(body, signature, outputs, symbols)
    for count, port in enumerate(copied_ports(signature.outputs)):
        place = _entry_of(body, "%outputs", outputs.index(port.name))
        dense = _entry_of(body, "%outputs", len(outputs) + count)
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
    body: IrBody, signature: Signature, outputs: Sequence[str], place_of_symbols: int
) -> None:
    """Store the symbols that the program has computed, kept within bounds, and what they change.

    Who made the call sees whether one was out of bounds: the output itself stays as it is.
    """
    found = [(i, s) for i, s in enumerate(signature.sources) if isinstance(s, ResultSource)]
    if not found:
        return
    symbols = _entry_of(body, "%inputs", place_of_symbols)
    for number, source in found:
        place = _entry_of(body, "%outputs", outputs.index(source.output))
        element = body.value(f"getelementptr i64, ptr {place}, i64 {source.position}")
        value = body.value(f"load i64, ptr {element}")
        for order, bound in (("slt", source.symbol.low), ("sgt", source.symbol.high)):
            outside = body.value(f"icmp {order} i64 {value}, {bound}")
            value = body.value(f"select i1 {outside}, i64 {bound}, i64 {value}")
        slot = body.value(f"getelementptr i64, ptr {symbols}, i64 {number}")
        body.line(f"store i64 {value}, ptr {slot}")
    numbers = _entry_of(body, "%inputs", place_of_symbols + 1)
    body.line(f"call void @{SIZES_SYMBOL}(ptr {symbols}, ptr {numbers})")
