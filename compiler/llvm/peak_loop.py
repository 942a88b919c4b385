"""Loops that show what a core can reach at most, and how long it waits.

    peak      for i in 0..n:  a0 = a0 * x + y;  a1 = a1 * x + y;  …     in registers
    dot       for i in 0..n:  a0 = a0 + x · y;  …                     of 8-bit integers
    tile      for i in 0..n:  t0 = t0 + t6 · t7;  …                   of matrix tiles
    tick      for i in 0..n:  a = (a + x) ^ x;  …                     a cycle each, one by one
    read      for i in 0..n:  a0 = a0 + data[i & mask, 0];  …
    write     for i in 0..n:  data[i & mask, 0] = x;  …
    chase     for i in 0..n:  a = data[a];  …                         one by one
    gather    for i in 0..n:  a0 = a0 + data[i & mask, x];  …         each element from a line
    convert   for i in 0..n:  a0 = a0 + f32(data[i & mask, 0]);  …    of bf16

Each is `void SYMBOL(i64 n, i64 mask, ptr data, ptr results)`; what it comes to is in `results`. It
goes again and again over the data of `mask` + 1 rounds, a power of two.
With as many sums as by default none waits for its last value: they are more than latency times
throughput of multiply-add on the CPUs we know (4 cycles, 2 a cycle), and few enough for 16
registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import llvmlite.binding as llvm

from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.machine.amx_set_up import SET_UP, configuration_ir, set_up_ir
from tunefarm.compiler.machine.float_state import float_state_ir
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

SUMS = 12
"""Values that a loop works on side by side, unless it is asked for another number."""
STREAMS = 8
"""Vectors of a round of a loop over data, a power of two: rounds fill blocks evenly."""
_TICKS = 16
_ELEMENT = 4  # bytes of what is gathered


@frozen
class MeasuredLoop:
    """A loop as LLVM text: `steps` of what it measures in a round, and bytes of data in it.

    `result_bytes` are those that it writes to `results`.
    """

    symbol: str
    text: str
    steps: int
    round_bytes: int = 0
    result_bytes: int = 64


def peak_loop(target: Target, sums: int = SUMS) -> MeasuredLoop:
    """Multiply-adds of f32 vectors in registers."""
    vector, declared, step = _multiply_adds(target)
    return _summing("peak_loop", vector, target.vector_bytes, sums, step, declared)


def dot_loop(target: Target) -> MeasuredLoop | None:
    """Dot products of unsigned and signed bytes; None for a target without in vectors."""
    lanes = target.lanes(DType.I32)
    vector, bits = f"<{lanes} x i32>", 8 * target.vector_bytes
    features = set(target.features)
    if {"avx512vnni", "avxvnni"} & features and target.triple.startswith("x86_64"):
        factor, name = f"<{4 * lanes} x i8>", f"llvm.x86.avx512.vpdpbusd.{bits}"
    elif "dotprod" in features:
        factor, name = f"<{4 * lanes} x i8>", "llvm.aarch64.neon.udot.v4i32.v16i8"
    else:
        return None

    def step(number: int) -> list[str]:
        arguments = f"{vector} %a{number}, {factor} %x, {factor} %x"
        return [f"%b{number} = call {vector} @{name}({arguments})"]

    declared = f"declare {vector} @{name}({vector}, {factor}, {factor})"
    start = [f"%x = load {factor}, ptr %data, align 1"]
    return _summing("dot_loop", vector, target.vector_bytes, SUMS, step, declared, start)


def tile_loop(target: Target, sums: int = 4) -> MeasuredLoop | None:
    """Products of full matrix tiles of bf16 or bytes; None for a target without AMX."""
    palette = target.matrix_tiles
    kinds = {"amx-bf16": "tdpbf16ps", "amx-int8": "tdpbssd"}
    name = next((kinds[feature] for feature in kinds if feature in target.features), "")
    if palette is None or not name:
        return None
    declared = "\n".join(
        [
            configuration_ir("shapes", palette.configuration()),
            f"declare void @{SET_UP}(ptr)",
            "declare void @llvm.x86.tilerelease()",
            "declare void @llvm.x86.tilezero(i8)",
            f"declare void @llvm.x86.{name}(i8, i8, i8)",
        ]
    )
    start = [f"call void @{SET_UP}(ptr @shapes)"]
    start += [f"call void @llvm.x86.tilezero(i8 {tile})" for tile in range(palette.tiles)]
    body = [f"call void @llvm.x86.{name}(i8 {tile}, i8 6, i8 7)" for tile in range(sums)]
    return _loop(
        "tile_loop", sums, body, declared, start, end=["call void @llvm.x86.tilerelease()"]
    )


def tick_loop(target: Target | None = None) -> MeasuredLoop:
    """Integer operations of one cycle each, every one of which waits for the one before.

    With a `target` there is a multiply-add of its vectors for every second of them: some CPUs
    lower their clock for those, and so these are cycles of the clock that vectors have.
    """
    body = []
    for number in range(_TICKS):
        before = f"%t{number - 1}" if number else "%t"
        body.append(f"%t{number} = {('add', 'xor')[number % 2]} i64 {before}, %mask")
    last = f"%t{_TICKS - 1}"
    carried, end = [("t", "i64", "%n", last)], [f"store i64 {last}, ptr %results"]
    if target is None:
        return _loop("tick_loop", _TICKS, body, carried=carried, end=end)
    vector, declared, step = _multiply_adds(target)
    for number in range(_TICKS // 2):
        body += step(number)
        carried.append((f"a{number}", vector, "zeroinitializer", f"%b{number}"))
        end.append(f"%s{number} = getelementptr {vector}, ptr %results, i64 {number + 1}")
        end.append(f"store {vector} %b{number}, ptr %s{number}, align 4")
    size = (1 + _TICKS // 2) * target.vector_bytes
    return _loop("tick_loop", _TICKS, body, declared, (), carried, end, result_bytes=size)


def read_loop(target: Target) -> MeasuredLoop:
    """Vectors of data that are summed up as integers; each round reads `STREAMS`.

    Their addresses are one register and a number: with two registers, a Skylake takes two
    operations for what adds and loads, and starts no two loads a cycle.
    """
    vector, size = f"<{target.vector_bytes // 8} x i64>", target.vector_bytes

    def step(number: int) -> list[str]:
        place = [
            f"%p{number} = getelementptr i8, ptr %base, i64 {number * size}",
            f"%l{number} = load {vector}, ptr %p{number}, align 8",
            f"%b{number} = add {vector} %a{number}, %l{number}",
        ]
        return place if number else [*_BASE, *place]

    return _summing("read_loop", vector, size, STREAMS, step, round_bytes=STREAMS * size)


def write_loop(target: Target) -> MeasuredLoop:
    """Vectors that are written, `STREAMS` in a round."""
    vector, size = f"<{target.vector_bytes // 8} x i64>", target.vector_bytes
    body = []
    for number in range(STREAMS):
        body += [*_place(number, size), f"store {vector} %x, ptr %p{number}, align 8"]
    start = [f"%x = load {vector}, ptr %data, align 8"]
    return _loop("write_loop", STREAMS, body, start=start, round_bytes=STREAMS * size)


def chase_loop() -> MeasuredLoop:
    """Offsets that are loaded from where the one before points to."""
    body = []
    for number in range(STREAMS):
        before = f"%c{number - 1}" if number else "%a"
        body.append(f"%p{number} = getelementptr i8, ptr %data, i64 {before}")
        body.append(f"%c{number} = load i64, ptr %p{number}, align 8")
    last = f"%c{STREAMS - 1}"
    end = [f"store i64 {last}, ptr %results"]
    return _loop("chase_loop", STREAMS, body, carried=[("a", "i64", "0", last)], end=end)


def gather_loop(target: Target) -> MeasuredLoop:
    """Vectors of f32 whose elements lie 0, 64, 128, … bytes behind the place of the round."""
    lanes = target.lanes(DType.F32)
    vector, pointers = f"<{lanes} x float>", f"<{lanes} x ptr>"
    apart = ", ".join(f"i64 {16 * lane}" for lane in range(lanes))
    name = f"@llvm.masked.gather.v{lanes}f32.v{lanes}p0"
    every = f"<{lanes} x i1> <{', '.join(['i1 true'] * lanes)}>"

    def step(number: int) -> list[str]:
        return [
            *_place(number, _ELEMENT),
            f"%q{number} = getelementptr float, ptr %p{number}, <{lanes} x i64> <{apart}>",
            f"%l{number} = call {vector} {name}({pointers} %q{number}, i32 {_ELEMENT}, {every}, "
            f"{vector} zeroinitializer)",
            f"%b{number} = fadd {vector} %a{number}, %l{number}",
        ]

    declared = f"declare {vector} {name}({pointers}, i32, <{lanes} x i1>, {vector})"
    line = STREAMS * _ELEMENT
    return _summing("gather_loop", vector, target.vector_bytes, STREAMS, step, declared, (), line)


def convert_loop(target: Target) -> MeasuredLoop:
    """Vectors of bf16 that are loaded and made f32."""
    lanes = target.lanes(DType.F32)
    vector, words, size = f"<{lanes} x float>", f"<{lanes} x i32>", target.vector_bytes // 2
    sixteen = f"<{', '.join(['i32 16'] * lanes)}>"

    def step(number: int) -> list[str]:
        return [
            *_place(number, size),
            f"%l{number} = load <{lanes} x i16>, ptr %p{number}, align 2",
            f"%w{number} = zext <{lanes} x i16> %l{number} to {words}",
            f"%s{number} = shl {words} %w{number}, {sixteen}",
            f"%f{number} = bitcast {words} %s{number} to {vector}",
            f"%b{number} = fadd {vector} %a{number}, %f{number}",
        ]

    made = target.vector_bytes
    return _summing("convert_loop", vector, made, STREAMS, step, round_bytes=STREAMS * size)


_BASE = (
    "%begin = getelementptr i8, ptr %data, i64 %at",
    '%base = call ptr asm "", "=r,0"(ptr %begin)',
)
"""The address of the round's data, in a register of its own."""


def _multiply_adds(target: Target) -> tuple[str, str, Callable[[int], list[str]]]:
    """A type of vectors, what has to be declared, and the line that makes `%b0` of `%a0`, …"""
    lanes = target.lanes(DType.F32)
    vector, half = f"<{lanes} x float>", f"<{', '.join(['float 0.5'] * lanes)}>"
    name = f"@llvm.fmuladd.v{lanes}f32"

    def step(number: int) -> list[str]:
        arguments = f"{vector} %a{number}, {vector} {half}, {vector} {half}"
        return [f"%b{number} = call {vector} {name}({arguments})"]

    return vector, f"declare {vector} {name}({vector}, {vector}, {vector})", step


def _place(number: int, size: int) -> list[str]:
    """The address of a vector of the round, whose place in the data begins at `%at`."""
    return [
        f"%o{number} = add i64 %at, {number * size}",
        f"%p{number} = getelementptr i8, ptr %data, i64 %o{number}",
    ]


def _summing(
    symbol: str,
    vector: str,
    bytes: int,
    sums: int,
    step: Callable[[int], list[str]],
    declared: str = "",
    start: Sequence[str] = (),
    round_bytes: int = 0,
) -> MeasuredLoop:
    """A loop that carries vectors `%a0`, … , of which a step makes `%b0`, …; results are those."""
    numbers = range(sums)
    places = [f"%r{k} = getelementptr {vector}, ptr %results, i64 {k}" for k in numbers]
    return _loop(
        symbol,
        sums,
        [line for k in numbers for line in step(k)],
        declared,
        [*start, *places],
        [(f"a{k}", vector, "zeroinitializer", f"%b{k}") for k in numbers],
        [f"store {vector} %b{k}, ptr %r{k}, align 4" for k in numbers],
        round_bytes,
        sums * bytes,
    )


def _loop(
    symbol: str,
    steps: int,
    body: Sequence[str],
    declared: str = "",
    start: Sequence[str] = (),
    carried: Sequence[tuple[str, str, str, str]] = (),
    end: Sequence[str] = (),
    round_bytes: int = 0,
    result_bytes: int = 64,
) -> MeasuredLoop:
    """`n` rounds of the body, in which `%at` are the bytes of data before the round's.

    `carried` are (name, type, first value, next value).
    """
    lines = [
        declared,
        f"define void @{symbol}(i64 %n, i64 %mask, ptr %data, ptr %results) {{",
        "entry:",
        *start,
        "br label %loop",
        "loop:",
        "%i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"%{name} = phi {type} [ {first}, %entry ], [ {after}, %loop ]"
          for name, type, first, after in carried),
        "%inside = and i64 %i, %mask",
        f"%at = mul i64 %inside, {round_bytes}",
        *body,
        "%next = add i64 %i, 1",
        "%more = icmp ult i64 %next, %n",
        "br i1 %more, label %loop, label %end",
        "end:",
        *end,
        "ret void",
        "}",
    ]  # fmt: skip
    return MeasuredLoop(symbol, "\n".join(lines) + "\n", steps, round_bytes, result_bytes)


# The yardstick: a fixed piece of work whose time tells how fast a core runs at the moment.

YARDSTICK_SYMBOL = "tunefarm_yardstick"
_CHAINS = 8  # as many independent chains as two units with a latency of four cycles take


@cache
def yardstick_object(target: Target) -> bytes:
    """Object code of `void tunefarm_yardstick(float *p, int64 n)`: n rounds of the work on *p."""
    vector = f"<{target.lanes(DType.F32)} x float>"
    lines = [
        f"define void @{YARDSTICK_SYMBOL}(ptr %p, i64 %n) {{",
        "entry:",
        f"  %x = load {vector}, ptr %p, align 4",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
    ]
    chains = range(_CHAINS)
    lines += [f"  %a{c} = phi {vector} [ %x, %entry ], [ %b{c}, %loop ]" for c in chains]
    for c in chains:
        lines.append(f"  %m{c} = fmul {vector} %a{c}, %x")
        lines.append(f"  %b{c} = fadd {vector} %m{c}, %x")
    lines += [
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %n",
        "  br i1 %more, label %loop, label %done",
        "done:",
    ]
    total = "%b0"
    for c in chains[1:]:
        lines.append(f"  %s{c} = fadd {vector} {total}, %b{c}")
        total = f"%s{c}"
    lines += [f"  store {vector} {total}, ptr %p, align 4", "  ret void", "}"]
    return object_code("\n".join(lines), target)


# A loop that calls a kernel n times: what the timer runs, so that no Python is in a sample.

REPEAT_SYMBOL = "tunefarm_repeat"

_IR = f"""
define void @{REPEAT_SYMBOL}(ptr %kernel, ptr %tables, ptr %workspace, ptr %runtime, i64 %n,
                             i64 %first, i64 %count, i64 %stride) {{
entry:
  %floats = call i64 @repeat_floats.flush()
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %turn = add nuw nsw i64 %first, %i
  %table = urem i64 %turn, %count
  %offset = mul nuw nsw i64 %table, %stride
  %buffers = getelementptr inbounds i8, ptr %tables, i64 %offset
  call void %kernel(ptr %buffers, ptr %workspace, ptr %runtime)
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  call void @repeat_floats.set(i64 %floats)
  ret void
}}
"""


def _repeat_ir(target: Target) -> str:
    """With matrix tiles set up round all calls, as they are in a model, if the target has them."""
    ir = float_state_ir(target.triple, "repeat_floats") + _IR
    if target.matrix_tiles is None:
        return ir
    begun = ir.replace("entry:\n", "entry:\n  call void @repeat_tiles.begin()\n")
    ended = begun.replace("done:\n", "done:\n  call void @repeat_tiles.end()\n")
    return set_up_ir(target.matrix_tiles, "repeat_tiles") + ended


@cache
def repeat_call_object(target: Target) -> bytes:
    """Object code of `void tunefarm_repeat(kernel, tables, workspace, runtime, n, first, count,
    stride)`, the last four int64."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(_repeat_ir(target))
    module.triple = target.triple
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        opt=1, reloc="pic", codemodel="default"
    )
    module.data_layout = str(machine.target_data)
    code: bytes = machine.emit_object(module)
    return code
