"""The entry function: one function per model that calls every kernel, with no Python between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from tunefarm.compiler.machine.amx_set_up import TilePalette, set_up_ir
from tunefarm.compiler.machine.float_state import float_state_ir
from tunefarm.compiler.runtime.entry.entry_functions import (
    FunctionSlots,
    OpenCall,
    call_ir,
    facts_ir,
    function_slots,
    report_ir,
    sizes_table_ir,
)
from tunefarm.compiler.runtime.entry.ir_body import IrBody
from tunefarm.compiler.runtime.entry.sized_entry import sized_entry_ir
from tunefarm.compiler.runtime.entry.step_clock import clock_ir, tick_ir
from tunefarm.compiler.runtime.spec.executable_spec import (
    ENTRY_SYMBOL,
    SEAL_SYMBOL,
    SIZED_ENTRY_SYMBOL,
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
from tunefarm.compiler.types.numerics import FLUSH

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
