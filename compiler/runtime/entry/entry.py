"""The entry function: one function per model that calls every kernel, with no Python between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from tunefarm.compiler.machine.amx_set_up import TilePalette, set_up_ir
from tunefarm.compiler.machine.float_state import float_state_ir
from tunefarm.compiler.runtime.entry.function_calls import (
    FunctionSlots,
    OpenCall,
    call_ir,
    facts_ir,
    function_slots,
    report_ir,
    sizes_table_ir,
)
from tunefarm.compiler.runtime.entry.ir_body import IrBody, SizeEmitter, copy_function
from tunefarm.compiler.runtime.spec.executable_spec import (
    ENTRY_SYMBOL,
    SEAL_SYMBOL,
    SIZED_ENTRY_SYMBOL,
    SIZES_SYMBOL,
    AgainStep,
    CallStep,
    Condition,
    CopyStep,
    ExecutableSpec,
    FunctionStep,
    Location,
    LoopStep,
    Place,
    RowStep,
    RunStep,
)
from tunefarm.compiler.runtime.spec.size_table import (
    PortLayout,
    SizeTable,
    copied_ports,
    layout_of,
)
from tunefarm.compiler.types.numerics import FLUSH
from tunefarm.compiler.types.signature import ResultSource, Signature, SizedPort
from tunefarm.compiler.types.sizes import Dimension, Size

# The entry functions of a model with run-time sizes, round the entry of its padded program.
#
#     void tunefarm_sizes(symbols, numbers)
#     void tunefarm_run_sized(inputs, outputs, constants, arena, runtime)
#
# The first computes the vector of `SizeTable` from the symbols, which must be within their bounds.
# The second takes the tables that the padded program takes, with more behind: `inputs` goes on
# with the vectors of symbols and numbers, then a dense array for each input that may be smaller
# than its place, and `outputs` with one for each such output. It copies the rows of inputs into
# their places, runs the program, reads the symbols that it has computed, and copies the rows of
# outputs out of their places. An array that is its own place, the same pointer twice, is not
# copied.


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


_TABLES = {Place.INPUT: "%inputs", Place.OUTPUT: "%outputs", Place.CONSTANT: "%constants"}


def entry_of(spec: ExecutableSpec, seal: bytes = b"", tiles: TilePalette | None = None) -> str:
    """LLVM IR of all entry functions of `spec`: `entry_ir`, and those for run-time sizes."""
    flushing = spec.target.triple if spec.denormals == FLUSH else ""
    text = entry_ir(spec.steps, seal, tiles, function_slots(spec), flushing)
    inputs, outputs = ([name for name, _ in ports] for ports in (spec.inputs, spec.outputs))
    return text + sized_entry_ir(spec.signature, inputs, outputs)


def clocked_entry_of(spec: ExecutableSpec) -> str:
    """LLVM IR of the same functions with a clock between the steps, see `step_clock`.

    Matrix tiles are set up wherever the target has any: a file does not say which kernels use them.
    """
    flushing = spec.target.triple if spec.denormals == FLUSH else ""
    slots, tiles = function_slots(spec), spec.target.matrix_tiles
    text = entry_ir(spec.steps, b"", tiles, slots, flushing, clocked=True)
    inputs, outputs = ([name for name, _ in ports] for ports in (spec.inputs, spec.outputs))
    text += sized_entry_ir(spec.signature, inputs, outputs)
    outermost = ENTRY_SYMBOL if spec.signature.is_fixed else SIZED_ENTRY_SYMBOL
    return text + clock_ir(spec.target.triple, len(spec.steps), outermost)


def entry_ir(
    steps: Sequence[RunStep],
    seal: bytes = b"",
    tiles: TilePalette | None = None,
    slots: FunctionSlots | None = None,
    flushing: str = "",
    *,
    clocked: bool = False,
) -> str:
    """LLVM IR of `void tunefarm_run(inputs, outputs, constants, arena, runtime)`.

    The first three are arrays of buffer pointers, `arena` is the planned memory, `runtime` is
    passed on to the kernels. One array on the stack holds the pointers of the call being made. A
    `seal` stands next to the function, as data that nothing reads. `tiles` are the matrix tiles
    that some kernels need: they are set up before all and released after all, and round functions
    that are not ours. Where there are such, `slots` say where their pointers are. `flushing` is the
    LLVM triple of the CPU whose state of floats flushes denormal numbers meanwhile, but in these
    functions; without it the state is the caller's. A `clocked` one counts the time of each step,
    see `step_clock`.
    """
    calls = [step for step in steps if isinstance(step, CallStep)]
    foreign = [step for step in steps if isinstance(step, FunctionStep)]
    widths = [len(call.buffers) for call in calls] + [len(call.buffers) for call in foreign]
    widest = max(widths, default=1)
    body = _Body()
    body.line(f"%buffers = alloca [{widest} x ptr], align 16")
    if flushing:
        body.line("%floats = call i64 @run_floats.flush()")
        if foreign:
            body.line("%flushing = call i64 @run_floats.get()")
    if tiles is not None:
        body.line("call void @run_tiles.begin()")
    if slots is not None and foreign:
        body.text(report_ir(slots))
    if sizes_table_ir(foreign):
        body.line(sizes_table_ir(foreign))
    _emit_steps(body, steps, slots, tiles is not None, bool(flushing), clocked)
    if tiles is not None:
        body.line("call void @run_tiles.end()")
    if flushing:
        body.line("call void @run_floats.set(i64 %floats)")
    body.line("ret void")
    floats = float_state_ir(flushing, "run_floats") if flushing else ""
    set_up = "" if tiles is None else set_up_ir(tiles, "run_tiles")
    facts = "".join(facts_ir(*item) for item in enumerate(foreign))
    declarations = "\n".join(
        f"declare void @{symbol}(ptr, ptr, ptr)" for symbol in _distinct(c.symbol for c in calls)
    )
    return (
        f"{_seal_ir(seal)}{floats}{set_up}{facts}{declarations}\n"
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
        f"define void @{ENTRY_SYMBOL}"
        "(ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %runtime) {\n"
        f"{body}\n}}\n"
    )


def _emit_steps(
    body: _Body,
    steps: Sequence[RunStep],
    slots: FunctionSlots | None,
    tiled: bool,
    flushing: bool,
    clocked: bool,
) -> None:
    """Write the steps in order; functions that are not ours are called as their caller left us."""
    pointer = partial(_pointer, body)
    loops = _EntryLoops(body, pointer, steps)
    left_out: dict[int, AbstractContextManager[None]] = {}  # by loop: where all of it is left out
    calls_made = 0
    if clocked:
        body.line(tick_ir(len(steps)))
    for index, step in enumerate(steps):
        if isinstance(step, CallStep):
            with body.guarded(step.guards):
                _emit_call(body, step)
        elif isinstance(step, CopyStep):
            loops.copy(step)
        elif isinstance(step, LoopStep):
            left_out[step.loop] = body.guarded(step.guards)
            left_out[step.loop].__enter__()
            loops.begin(step)
        elif isinstance(step, AgainStep):
            loops.end(step)
            left_out.pop(step.loop).__exit__(None, None, None)
        elif slots is not None:
            with body.guarded(step.guards):
                _emit_buffers(body, step.buffers)
                code = call_ir(calls_made, step, slots, index)
                code = _without_tiles(code) if tiled else code
                code = _with_callers_floats(code) if flushing else code
                if step.axes:
                    opened = OpenCall(body, pointer, calls_made, step, slots.extents)
                    opened.begin()
                    body.text(code)
                    opened.end()
                else:
                    body.text(code)
            calls_made += 1
        if clocked:
            body.line(tick_ir(index))


def _seal_ir(seal: bytes) -> str:
    if not seal:
        return ""
    text = "".join(f"\\{byte:02x}" for byte in seal)
    return f'@{SEAL_SYMBOL} = constant [{len(seal)} x i8] c"{text}"\n'


class _Body(IrBody):
    """The body of the entry function, parts of which run under conditions."""

    @contextmanager
    def guarded(self, conditions: Sequence[Condition]) -> Iterator[None]:
        """What is written inside runs only where the conditions hold."""
        behind = self.new_label() if conditions else ""
        for condition in conditions:
            byte = self.value(f"load i8, ptr {_pointer(self, condition.place)}")
            holds = self.value(f"icmp {'ne' if condition.taken else 'eq'} i8 {byte}, 0")
            inside = self.new_label()
            self.line(f"br i1 {holds}, label %{inside}, label %{behind}")
            self.line(f"{inside}:")
        yield
        if behind:
            self.line(f"br label %{behind}")
            self.line(f"{behind}:")


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _pointer(body: IrBody, location: Location) -> str:
    if location.place is Place.ARENA:
        return body.value(f"getelementptr i8, ptr %arena, i64 {location.number}")
    table = _TABLES[location.place]
    slot = body.value(f"getelementptr ptr, ptr {table}, i64 {location.number}")
    pointer = body.value(f"load ptr, ptr {slot}")
    if not location.offset:
        return pointer
    return body.value(f"getelementptr i8, ptr {pointer}, i64 {location.offset}")


def _emit_call(body: IrBody, step: CallStep) -> None:
    _emit_buffers(body, step.buffers)
    workspace = "null"
    if step.workspace is not None:
        workspace = _pointer(body, Location(Place.ARENA, step.workspace))
    body.line(f"call void @{step.symbol}(ptr %buffers, ptr {workspace}, ptr %runtime)")


def _emit_buffers(body: IrBody, buffers: Sequence[Location | None]) -> None:
    """Put the pointers of a call into their array."""
    for position, location in enumerate(buffers):
        pointer = "null" if location is None else _pointer(body, location)
        slot = body.value(f"getelementptr ptr, ptr %buffers, i64 {position}")
        body.line(f"store ptr {pointer}, ptr {slot}")


def _without_tiles(call: str) -> str:
    """A function may use the CPU's matrix tiles for itself."""
    return f"  call void @run_tiles.end()\n{call}\n  call void @run_tiles.begin()"


def _with_callers_floats(call: str) -> str:
    """A function is called as the model is; one that fails ends the run in that state."""
    again = "call void @run_floats.set(i64 %flushing)"
    return f"  call void @run_floats.set(i64 %floats)\n{call}\n  {again}"


class _EntryLoops:
    """Writes the loops of one function into its body: how often, which row, and what the next round
    begins with.

        limit = min(limit, most); round = 0; on = first
        head:   round < limit and on ? body : behind
        body:   index = round; ...steps...
                rows[round] = ...; on = again; states = following; round += 1; to head
        behind: count = round; going = on and round < limit as it was asked for

    Round and condition stand on the stack: LLVM's code keeps no more than these two there.
    """

    def __init__(
        self, body: IrBody, pointer: Callable[[Location], str], steps: Sequence[RunStep]
    ) -> None:
        """`pointer` appends what computes a location's address, and gives its name."""
        self._body, self._pointer = body, pointer
        self._asked: dict[int, str] = {}  # the limit of each loop that has begun, as it was given
        self._limits: dict[int, str] = {}  # the same, no more than there is memory for
        for step in steps:
            if isinstance(step, LoopStep):
                body.line(f"%round{step.loop} = alloca i64")
                body.line(f"%on{step.loop} = alloca i1")

    def begin(self, step: LoopStep) -> None:
        """The copies before a loop, its head, and the beginning of its body."""
        body, number, most = self._body, step.loop, str(step.most)
        for copy in step.initial:
            self.copy(copy)
        asked = limit = most
        if step.limit is not None:
            asked = body.value(f"load i64, ptr {self._pointer(step.limit)}")
            less = body.value(f"icmp slt i64 {asked}, {most}")
            limit = body.value(f"select i1 {less}, i64 {asked}, i64 {most}")
        self._asked[number], self._limits[number] = asked, limit
        on = "true" if step.first is None else self._true(step.first)
        body.line(f"store i64 0, ptr %round{number}")
        body.line(f"store i1 {on}, ptr %on{number}")
        body.line(f"br label %loop{number}.head")
        body.line(f"loop{number}.head:")
        count = body.value(f"load i64, ptr %round{number}")
        within = body.value(f"icmp slt i64 {count}, {limit}")
        goes_on = body.value(f"load i1, ptr %on{number}")
        more = body.value(f"and i1 {within}, {goes_on}")
        body.line(f"br i1 {more}, label %loop{number}.body, label %loop{number}.behind")
        body.line(f"loop{number}.body:")
        if step.index is not None:
            body.line(f"store i64 {count}, ptr {self._pointer(step.index)}")

    def end(self, step: AgainStep) -> None:
        """The end of a loop's body, and what is known behind the loop."""
        body, number = self._body, step.loop
        count = body.value(f"load i64, ptr %round{number}")
        for row in step.rows:
            self._row(row, count, number)
        if step.again is not None:
            body.line(f"store i1 {self._true(step.again)}, ptr %on{number}")
        for copy in step.following:
            self.copy(copy)
        following = body.value(f"add i64 {count}, 1")
        body.line(f"store i64 {following}, ptr %round{number}")
        body.line(f"br label %loop{number}.head")
        body.line(f"loop{number}.behind:")
        ran = body.value(f"load i64, ptr %round{number}")
        if step.count is not None:
            body.line(f"store i64 {ran}, ptr {self._pointer(step.count)}")
        if step.going is not None:
            more = body.value(f"icmp slt i64 {ran}, {self._asked[number]}")
            on = body.value(f"load i1, ptr %on{number}")
            going = body.value(f"and i1 {more}, {on}")
            byte = body.value(f"zext i1 {going} to i8")
            body.line(f"store i8 {byte}, ptr {self._pointer(step.going)}")

    def copy(self, step: CopyStep) -> None:
        """Copy memory from one place to another."""
        self._move(self._pointer(step.source), self._pointer(step.destination), step.bytes)

    def _row(self, step: RowStep, count: str, number: int) -> None:
        body, row = self._body, count
        if step.backward:
            last = body.value(f"sub i64 {self._limits[number]}, 1")
            row = body.value(f"sub i64 {last}, {count}")
        offset = body.value(f"mul i64 {row}, {step.bytes}")
        source, first = self._pointer(step.source), self._pointer(step.destination)
        destination = body.value(f"getelementptr i8, ptr {first}, i64 {offset}")
        self._move(source, destination, step.bytes)

    def _move(self, source: str, destination: str, bytes: int) -> None:
        self._body.line(
            "call void @llvm.memcpy.p0.p0.i64"
            f"(ptr {destination}, ptr {source}, i64 {bytes}, i1 false)"
        )

    def _true(self, place: Location) -> str:
        """Whether the bool at a place is true."""
        byte = self._body.value(f"load i8, ptr {self._pointer(place)}")
        return self._body.value(f"icmp ne i8 {byte}, 0")


# A clock inside the entry function, which counts how long each step of a run takes.

CLOCKED_ENTRY_SYMBOL = "tunefarm_run_clocked"
CLOCK_SYMBOL = "tunefarm_clock"
TICKS_SYMBOL = "tunefarm_ticks"
_READ = "call i64 @llvm.readcyclecounter()"
_READ_ARM = 'call i64 @llvm.read_volatile_register.i64(metadata !{!"cntvct_el0"})'
_CLOCK = """\
@{ticks} = global [{counts} x i64] zeroinitializer
@step_clock.last = internal global i64 0
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.read_volatile_register.i64(metadata)
define i64 @{clock}() {{
  %now = {read}
  ret i64 %now
}}
define internal void @step_clock.tick(i64 %step) noinline nounwind {{
  %now = {read}
  %last = load i64, ptr @step_clock.last
  %spent = sub i64 %now, %last
  %place = getelementptr i64, ptr @{ticks}, i64 %step
  %before = load i64, ptr %place
  %sum = add i64 %before, %spent
  store i64 %sum, ptr %place
  store i64 %now, ptr @step_clock.last
  ret void
}}
define void @{clocked}(ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %runtime) {{
  %now = {read}
  store i64 %now, ptr @step_clock.last
  call void @{entry}(ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %runtime)
  {behind}
  ret void
}}
"""


def tick_ir(step: int) -> str:
    """The instruction that ends a step: its ticks are counted up to here."""
    return f"call void @step_clock.tick(i64 {step})"


def clock_ir(triple: str, steps: int, entry: str) -> str:
    """LLVM IR of the clock for CPUs of an LLVM triple, and of the function that calls the `entry`
    of so many steps."""
    return _CLOCK.format(
        ticks=TICKS_SYMBOL,
        counts=steps + 1,
        read=_READ_ARM if triple.startswith("aarch64") else _READ,
        clock=CLOCK_SYMBOL,
        clocked=CLOCKED_ENTRY_SYMBOL,
        entry=entry,
        behind=tick_ir(steps),
    )
