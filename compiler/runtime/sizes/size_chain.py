"""The code that knows the sizes of a call: which program is for them, and what follows from them.

    i32 tunefarm_choose(state)      found -> the first program whose guards admit it, its symbols,
                                    numbers and facts; not 0 if there is none, where the program is
                                    -1, or sizes do not fit it: which of `ModelPorts.checks`
    void tunefarm_tell(state)       the facts again, after a run that has computed sizes
    void tunefarm_run_chosen(inputs, outputs, programs, arena, runtime)
                                    the entry of a model of such programs

It is made when a model is loaded, which programs there are depends on the CPU, where a model with
fixed sizes does without; and for a C library, whose programs are those for all CPUs: the number of
that which runs it stands behind what was found. `state` is that of `runtime.sizes.size_state`. The
last takes tables of all ports (`runtime.sizes.model_ports`), makes those of the chosen program, and
calls its entry: `programs` has the entry and the constants of each, interleaved. The functions of
sizes that programs have are `sizes.0` and so on, or have other names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.runtime.entry.ir_body import IrBody
from tunefarm.compiler.runtime.sizes.model_ports import (
    ModelPort,
    ModelPorts,
    ProgramSizes,
    Room,
    distinct,
)
from tunefarm.compiler.runtime.sizes.size_state import FIRST_CHECK, NO_PROGRAM, PortFacts, Way
from tunefarm.compiler.runtime.spec.size_table import SizeTable, bytes_of_dense, copied_ports
from tunefarm.compiler.types.signature import SIZES, AxisSource, ResultSource, Signature
from tunefarm.compiler.types.sizes import Dimension, Size

CHOOSE_SYMBOL = "tunefarm_choose"
UPDATE_SYMBOL = "tunefarm_tell"
RUN_SYMBOL = "tunefarm_run_chosen"

_WORTH_SHARING = 2
"""A result may begin a memory that is so many times as large, and none that is larger."""


def sizes_symbol(number: int) -> str:
    """What a program's function of sizes goes by in this code."""
    return f"sizes.{number}"


def chain_ir(ports: ModelPorts, sizes_symbol: Callable[[int], str] = sizes_symbol) -> str:
    """LLVM IR of the functions for the programs of these ports; `sizes_symbol` names the functions
    of sizes that these have."""
    chain = _Chain(ports, sizes_symbol)
    sized = [n for n, table in enumerate(ports.state.tables) if table.dimensions]
    declared = "".join(f"declare void @{sizes_symbol(n)}(ptr, ptr)\n" for n in sized)
    facts = "".join(map(chain.facts_function, range(len(ports.programs))))
    functions = f"{chain.choose_function()}{chain.update_function()}{_Entry(ports).text()}"
    return f"{declared}{facts}{functions}"


class _Chain:
    """Chooses a program and writes what follows."""

    def __init__(self, ports: ModelPorts, sizes_symbol: Callable[[int], str]) -> None:
        self._ports, self._state, self._sizes_symbol = ports, ports.state, sizes_symbol
        observed = [*(("axis", *item) for item in ports.axes)]
        observed += [("value", *item) for item in ports.values]
        self._found = {item: number for number, item in enumerate(observed)}
        self._refused = {item: f"refused{number}" for number, item in enumerate(ports.checks)}
        self._numbers = {port.name: number for number, port in enumerate(ports.inputs)}

    def choose_function(self) -> str:
        body = IrBody()
        body.line("br label %program0")
        for number, program in enumerate(self._ports.programs):
            body.line(f"program{number}:")
            self._guards(body, number, program)
            self._say(body, number)
            self._sizes(body, number, program.signature)
            body.line(f"call void @facts.{number}(ptr %state)")
            body.line("ret i32 0")
        body.line(f"program{len(self._ports.programs)}:")
        self._say(body, -1)
        body.line(f"ret i32 {NO_PROGRAM}")
        for check in range(len(self._ports.checks)):
            body.line(f"refused{check}:")
            body.line(f"ret i32 {FIRST_CHECK + check}")
        return f"define i32 @{CHOOSE_SYMBOL}(ptr %state) {{\n{body}\n}}\n"

    def _say(self, body: IrBody, number: int) -> None:
        body.line(f"store i64 {number}, ptr {_slot(body, '%state', self._state.facts)}")

    def _guards(self, body: IrBody, number: int, program: ProgramSizes) -> None:
        """Go on to the next program unless all guards admit what was found, on its CPU."""
        if self._ports.machines > 1:
            machine = body.value(f"load i64, ptr {_slot(body, '%state', len(self._found))}")
            _within(body, machine, program.machine, program.machine, f"program{number + 1}")
        for guard in program.guards:
            found = self._load_found(body, "axis", guard.input, guard.axis)
            _within(body, found, guard.low, guard.high, f"program{number + 1}")

    def _sizes(self, body: IrBody, number: int, signature: Signature) -> None:
        """The program's symbols and numbers, refused unless they fit."""
        symbols = _slot(body, "%state", self._state.symbols[number])
        numbers = _slot(body, "%state", self._state.numbers[number])
        for place, source in enumerate(signature.sources):
            slot = _slot(body, symbols, place)
            if isinstance(source, ResultSource):
                body.line(f"store i64 {source.symbol.high}, ptr {slot}")
                continue
            if isinstance(source, AxisSource):
                found = self._load_found(body, "axis", source.input, source.axis)
            else:
                found = self._load_found(body, "value", source.input, source.position)
            refused = self._refused[number, source]
            _within(body, found, source.symbol.low, source.symbol.high, refused)
            body.line(f"store i64 {found}, ptr {slot}")
        table = self._state.tables[number]
        if table.dimensions:
            body.line(f"call void @{self._sizes_symbol(number)}(ptr {symbols}, ptr {numbers})")
        for item in signature.equalities:
            sides = [_operand(body, numbers, table, side) for side in (item.left, item.right)]
            same, fits = body.value(f"icmp eq i64 {sides[0]}, {sides[1]}"), body.new_label()
            body.line(f"br i1 {same}, label %{fits}, label %{self._refused[number, item]}")
            body.line(f"{fits}:")

    def _load_found(self, body: IrBody, kind: str, input: str, place: int) -> str:
        number = self._found[kind, self._numbers[input], place]
        return body.value(f"load i64, ptr {_slot(body, '%state', number)}")

    def update_function(self) -> str:
        body, state = IrBody(), self._state
        chosen = body.value(f"load i64, ptr {_slot(body, '%state', state.facts)}")
        for number in range(len(self._ports.programs)):
            _call_if(body, chosen, number, f"call void @facts.{number}(ptr %state)")
        body.line("ret void")
        return f"define void @{UPDATE_SYMBOL}(ptr %state) {{\n{body}\n}}\n"

    def facts_function(self, number: int) -> str:
        """Writes the facts of program `number` from its numbers."""
        body, state = IrBody(), self._state
        facts = _slot(body, "%state", state.facts)
        numbers = _slot(body, "%state", state.numbers[number])
        table = state.tables[number]
        ports = distinct((*self._ports.inputs, *self._ports.outputs))
        for port, place in zip(ports, state.ports, strict=True):
            _PortFactsCode(body, facts, numbers, table).write(port, port.rooms[number], place)
        body.line("ret void")
        return f"define internal void @facts.{number}(ptr %state) {{\n{body}\n}}\n"


class _PortFactsCode:
    """Writes what is known of ports that are alike."""

    def __init__(self, body: IrBody, facts: str, numbers: str, table: SizeTable) -> None:
        self._body, self._facts, self._numbers, self._table = body, facts, numbers, table

    def write(self, port: ModelPort, room: Room, place: PortFacts) -> None:
        extents = [self._operand(dimension) for dimension in room.shape]
        for offset, extent in enumerate(extents, start=place.shape.start):
            self._store(extent, offset)
        missing = place.factors.stop - place.factors.start - len(room.factors)
        if port.late:
            factors = [*["1"] * missing, *map(self._operand, room.factors)]
            for offset, extent in enumerate(factors, start=place.factors.start):
                self._store(extent, offset)
        whole = self._all("eq", extents, room.type.shape)
        way = self._select(self._begins(extents, room), Way.BEGINS, str(int(Way.COPIED)))
        count = self._operand(bytes_of_dense(port.declared.dtype, room.shape))
        self._store(count, place.bytes)
        if port.kind == "output":
            way = self._way_out(room, way, count)
        way = str(int(Way.WHOLE)) if room.read_dense else self._select(whole, Way.WHOLE, way)
        self._store(str(int(Way.LATE)) if room.late else way, place.way)

    def _way_out(self, room: Room, way: str, count: str) -> str:
        """Of a result that is smaller than its place."""
        if room.grows and room.strides is not None:
            return str(int(Way.LENT))
        least = -(-room.bytes // _WORTH_SHARING)
        worth = self._body.value(f"icmp sge i64 {count}, {least}")
        return self._select(worth, None, way)

    def _begins(self, extents: Sequence[str], room: Room) -> str:
        """Whether a dense array lies as at the beginning of its place: it is empty, or only one
        axis is shorter there, and none outside of that has more than one element."""
        if room.strides is None:
            return "false"
        begins = self._any("eq", extents, [0] * len(extents))
        for axis in range(max(1, len(extents))):
            single = self._all("eq", extents[:axis], [1] * axis)
            full = self._all("eq", extents[axis + 1 :], room.type.shape[axis + 1 :])
            found = self._body.value(f"and i1 {single}, {full}")
            begins = self._body.value(f"or i1 {begins}, {found}")
        return begins

    def _all(self, order: str, left: Sequence[str], right: Sequence[int]) -> str:
        return self._joined("and", "true", order, left, right)

    def _any(self, order: str, left: Sequence[str], right: Sequence[int]) -> str:
        return self._joined("or", "false", order, left, right)

    def _joined(
        self, how: str, start: str, order: str, left: Sequence[str], right: Sequence[int]
    ) -> str:
        result = start
        for one, other in zip(left, right, strict=True):
            holds = self._body.value(f"icmp {order} i64 {one}, {other}")
            result = self._body.value(f"{how} i1 {result}, {holds}")
        return result

    def _select(self, holds: str, way: Way | None, otherwise: str) -> str:
        """A way if something holds; without one the other way, or rows are copied."""
        if way is None:
            return self._body.value(f"select i1 {holds}, i64 {otherwise}, i64 {int(Way.COPIED)}")
        return self._body.value(f"select i1 {holds}, i64 {int(way)}, i64 {otherwise}")

    def _operand(self, dimension: Dimension) -> str:
        return _operand(self._body, self._numbers, self._table, dimension)

    def _store(self, value: str, place: int) -> None:
        self._body.line(f"store i64 {value}, ptr {_slot(self._body, self._facts, place)}")


class _Entry:
    """The entry that calls that of the chosen program."""

    def __init__(self, ports: ModelPorts) -> None:
        self._ports, self._state, self._tables = ports, ports.state, ports.tables

    def text(self) -> str:
        body = IrBody()
        state = self._entry_of(body, "%inputs", self._tables.state)
        chosen = body.value(f"load i64, ptr {_slot(body, state, self._state.facts)}")
        arguments = "ptr %inputs, ptr %outputs, ptr %programs, ptr %arena, ptr %runtime"
        programs = range(len(self._ports.programs))
        for number in programs:
            call = f"call void @run.{number}({arguments}, ptr {state})"
            _call_if(body, chosen, number, call)
        body.line("ret void")
        parts = "".join(self._run(number, f"{arguments}, ptr %state") for number in programs)
        return f"{parts}define void @{RUN_SYMBOL}({arguments}) {{\n{body}\n}}\n"

    def _run(self, number: int, arguments: str) -> str:
        """The function that makes a program's tables and calls its entry."""
        body, program = IrBody(), self._ports.programs[number]
        inputs, outputs = self._tables.inputs, self._tables.outputs
        symbols = _slot(body, "%state", self._state.symbols[number])
        numbers = _slot(body, "%state", self._state.numbers[number])
        read = [
            numbers if name == SIZES else self._entry_of(body, "%inputs", inputs.places[name])
            for name in program.inputs
        ]
        written = [
            self._entry_of(body, "%outputs", outputs.places[name]) for name in program.outputs
        ]
        dense = [inputs.dense[port.name] for port in copied_ports(program.signature.inputs)]
        read += [symbols, numbers]
        read += [self._entry_of(body, "%inputs", place) for place in dense]
        dense = [outputs.dense[port.name] for port in copied_ports(program.signature.outputs)]
        written += [self._entry_of(body, "%outputs", place) for place in dense]
        tables = [_table_of(body, pointers) for pointers in (read, written)]
        entry = self._entry_of(body, "%programs", 2 * number)
        constants = self._entry_of(body, "%programs", 2 * number + 1)
        body.line(
            f"call void {entry}(ptr {tables[0]}, ptr {tables[1]}, ptr {constants}, "
            "ptr %arena, ptr %runtime)"
        )
        body.line("ret void")
        return f"define internal void @run.{number}({arguments}) {{\n{body}\n}}\n"

    def _entry_of(self, body: IrBody, table: str, number: int) -> str:
        return body.value(f"load ptr, ptr {_slot(body, table, number, 'ptr')}")


def _table_of(body: IrBody, pointers: Sequence[str]) -> str:
    table = body.value(f"alloca [{max(1, len(pointers))} x ptr], align 16")
    for number, pointer in enumerate(pointers):
        body.line(f"store ptr {pointer}, ptr {_slot(body, table, number, 'ptr')}")
    return table


def _call_if(body: IrBody, chosen: str, number: int, call: str) -> None:
    """Where the chosen program is that number, make the call and return."""
    matches = body.value(f"icmp eq i64 {chosen}, {number}")
    here, behind = body.new_label(), body.new_label()
    body.line(f"br i1 {matches}, label %{here}, label %{behind}")
    body.line(f"{here}:")
    body.line(call)
    body.line("ret void")
    body.line(f"{behind}:")


def _within(body: IrBody, value: str, low: int, high: int, otherwise: str) -> None:
    """Go elsewhere unless a value is within bounds."""
    above = body.value(f"icmp sge i64 {value}, {low}")
    below = body.value(f"icmp sle i64 {value}, {high}")
    fits, inside = body.value(f"and i1 {above}, {below}"), body.new_label()
    body.line(f"br i1 {fits}, label %{inside}, label %{otherwise}")
    body.line(f"{inside}:")


def _operand(body: IrBody, numbers: str, table: SizeTable, dimension: Dimension) -> str:
    """A dimension: a number, or one that is loaded from a program's numbers."""
    if not isinstance(dimension, Size):
        return str(dimension)
    return body.value(f"load i64, ptr {_slot(body, numbers, table.numbers[dimension])}")


def _slot(body: IrBody, vector: str, number: int, kind: str = "i64") -> str:
    return body.value(f"getelementptr {kind}, ptr {vector}, i64 {number}")
