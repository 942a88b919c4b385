"""Parallel loops: a function of their own, which the threads of a team run until no chunk is left.

The function's context is { buffers, workspace, next chunk, number of chunks } and the variables of
the serial loops outside; threads draw chunk numbers from the shared counter. Where chunks differ
by an iteration the longer ones come first, so that what is left for the last draws is as even as
it can be.

A thread that multiplies packed weights first asks for what each of its iterations reads whole, such
as the other factor of a product of one row: another core has just written it, and its lines would
come one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeAlias

from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.llvm.loads import CACHE_LINE
from tunefarm.compiler.llvm.writer import FunctionWriter
from tunefarm.compiler.loops.ir import Dot, For, Let, Memory, Store, Update, values_of, walk
from tunefarm.compiler.machine.amx_set_up import TILED

RangeLoop: TypeAlias = Callable[[str, str], None]  # emits the loop over [start, stop)
Leave: TypeAlias = Callable[[], None]  # emits what the function ends with
Body: TypeAlias = Callable[[FunctionWriter, str, str, list[str]], tuple[RangeLoop, Leave]]
"""What is in the function, given buffers, workspace and the variables of loops outside."""


def _context(outside: int) -> str:
    """The type of a context with so many variables of loops outside."""
    return f"{{ ptr, ptr, i64, i64{', i64' * outside} }}"


def call_outlined(
    writer: FunctionWriter,
    loop: For,
    name: str,
    outside: Sequence[str] = (),
    tiled: bool = False,
    stop: str | None = None,
    worth: str | None = None,
) -> None:
    """Run the outlined loop `name`: by a team, or alone where there is none.

    `outside` are the values of the loops outside. Where the loop is `tiled`, threads set up matrix
    tiles for it. A loop that ends at run time does so before `stop`, and may have no round. Only
    where the bool `worth`, if there is any, holds do other threads take part.
    """
    type = _context(len(outside) + (stop is not None))
    extent = str(loop.stop - loop.start)
    if stop is not None:
        extent = writer.emit(f"sub nsw i64 {stop}, {loop.start}")
        outside = (*outside, extent)
    context = writer.emit_entry(f"alloca {type}, align 8")
    slots = [
        writer.emit(f"getelementptr inbounds {type}, ptr {context}, i32 0, i32 {i}")
        for i in range(4 + len(outside))
    ]
    over = ""
    if stop is not None:
        some, over = writer.label("some"), writer.label("over")
        rounds = writer.emit(f"icmp sgt i64 {extent}, 0")
        writer.line(f"br i1 {rounds}, label %{some}, label %{over}")
        writer.begin_block(some)
    parallel = writer.emit("load ptr, ptr %runtime, align 8")
    slot = writer.emit("getelementptr inbounds i8, ptr %runtime, i64 8")
    threads = writer.emit(f"load i32, ptr {slot}, align 4")
    absent = writer.emit(f"icmp eq ptr {parallel}, null")
    single = writer.emit(f"icmp sle i32 {threads}, 1")
    serial = writer.emit(f"or i1 {absent}, {single}")
    if worth is not None:
        little = writer.emit(f"xor i1 {worth}, true")
        serial = writer.emit(f"or i1 {serial}, {little}")
    chunks = _chunks(writer, loop, extent, threads, serial)
    variables = [f"i64 {value}" for value in outside]
    values = ["ptr %buffers", "ptr %workspace", "i64 0", f"i64 {chunks}", *variables]
    for slot, stored in zip(slots, values, strict=True):
        writer.line(f"store {stored}, ptr {slot}, align 8")
    alone, together, done = writer.label("alone"), writer.label("team"), writer.label("done")
    writer.line(f"br i1 {serial}, label %{alone}, label %{together}")
    writer.begin_block(alone)
    writer.line(f"call void @{name}(ptr {context})")
    writer.line(f"br label %{done}")
    writer.begin_block(together)
    flags = TILED if tiled else 0
    writer.line(f"call void {parallel}(ptr @{name}, ptr {context}, i32 {threads}, i32 {flags})")
    writer.line(f"br label %{done}")
    writer.begin_block(done)
    if over:
        writer.line(f"br label %{over}")
        writer.begin_block(over)


def _chunks(writer: FunctionWriter, loop: For, extent: str, threads: str, serial: str) -> str:
    """In how many chunks the loop is shared out: one if the bool `serial` holds."""
    wide = writer.emit(f"sext i32 {threads} to i64")
    wanted = writer.emit(f"mul i64 {wide}, {loop.chunks}")
    smaller = writer.emit(f"icmp slt i64 {wanted}, {extent}")
    capped = writer.emit(f"select i1 {smaller}, i64 {wanted}, i64 {extent}")
    return writer.emit(f"select i1 {serial}, i64 1, i64 {capped}")


def outline(loop: For, name: str, writer: FunctionWriter, body: Body, outside: int = 0) -> str:
    """The function that each thread of the team calls, written by a new writer."""
    outside += loop.limit is not None
    slots = [
        writer.emit_entry(
            f"getelementptr inbounds {_context(outside)}, ptr %context, i32 0, i32 {i}"
        )
        for i in range(4 + outside)
    ]
    buffers = writer.emit_entry(f"load ptr, ptr {slots[0]}, align 8")
    workspace = writer.emit_entry(f"load ptr, ptr {slots[1]}, align 8")
    chunks = writer.emit_entry(f"load i64, ptr {slots[3]}, align 8")
    values = [writer.emit_entry(f"load i64, ptr {slot}, align 8") for slot in slots[4:]]
    extent = str(loop.stop - loop.start) if loop.limit is None else values.pop()
    run, end = body(writer, buffers, workspace, values)
    length = writer.emit(f"udiv i64 {extent}, {chunks}")
    longer = writer.emit(f"urem i64 {extent}, {chunks}")
    draw, work, leave = writer.label("draw"), writer.label("work"), writer.label("leave")
    writer.line(f"br label %{draw}")
    writer.begin_block(draw)
    number = writer.emit(f"atomicrmw add ptr {slots[2]}, i64 1 monotonic, align 8")
    left = writer.emit(f"icmp slt i64 {number}, {chunks}")
    writer.line(f"br i1 {left}, label %{work}, label %{leave}")
    writer.begin_block(work)
    bounds = []
    for base in (number, writer.emit(f"add nsw i64 {number}, 1")):
        scaled = writer.emit(f"mul nsw i64 {base}, {length}")
        early = writer.emit(f"icmp slt i64 {base}, {longer}")
        extra = writer.emit(f"select i1 {early}, i64 {base}, i64 {longer}")
        share = writer.emit(f"add nsw i64 {scaled}, {extra}")
        bounds.append(writer.emit(f"add nsw i64 {share}, {loop.start}"))
    run(bounds[0], bounds[1])
    writer.line(f"br label %{draw}")
    writer.begin_block(leave)
    end()
    writer.line("ret void")
    return f"define internal void @{name}(ptr %context) nounwind {{\nentry:\n{writer.text()}\n}}"


MOST_ASKED_FOR = 24 * 1024
"""Bytes of a buffer that is asked for at once: half of a first-level cache."""


def read_by_all(loop: For, memories: Sequence[Memory]) -> list[Memory]:
    """The small ones of these that a parallel loop of dot products reads at the same places in each
    of its iterations."""
    if not any(isinstance(statement, Dot) for statement in walk(loop.body)):
        return []
    own, inside = {loop.variable}, {loop.variable}
    read: dict[str, set[str]] = {}
    for statement in walk(loop.body):
        if isinstance(statement, For | Let | Dot):
            inside.add(statement.variable)
        if isinstance(statement, Let) and axes_of(statement.value) & own:
            own.add(statement.variable)
        if isinstance(statement, Store | Update | Dot):
            for load in chain.from_iterable(map(loads, values_of(statement))):
                read.setdefault(load.buffer, set()).update(*map(axes_of, load.indices))
    return [
        memory
        for memory in memories
        if CACHE_LINE < memory.type.bytes <= MOST_ASKED_FOR
        and memory.name in read
        and read[memory.name] <= inside - own
    ]


def ask_for(writer: FunctionWriter, pointer: str, count: int) -> None:
    """Have so many bytes brought to this thread's core, all lines at once."""
    before, head, done = writer.block, writer.label("ask"), writer.label("asked")
    offset, following = writer.fresh("o"), writer.fresh("n")
    writer.line(f"br label %{head}")
    writer.begin_block(head)
    writer.line(f"{offset} = phi i64 [ 0, %{before} ], [ {following}, %{head} ]")
    line = writer.emit(f"getelementptr i8, ptr {pointer}, i64 {offset}")
    writer.call("llvm.prefetch.p0", [f"ptr {line}", "i32 0", "i32 3", "i32 1"])
    writer.line(f"{following} = add nsw i64 {offset}, {CACHE_LINE}")
    more = writer.emit(f"icmp slt i64 {following}, {count}")
    writer.line(f"br i1 {more}, label %{head}, label %{done}")
    writer.begin_block(done)
