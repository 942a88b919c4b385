"""Loops that show what a core could reach at most.

    peak_loop  for i in 0..n:  a0 = a0 * x + y;  a1 = a1 * x + y;  …     in registers
    read_loop  for i in 0..n:  a0 = a0 + data[i, 0];  a1 = a1 + data[i, 1];  …

There are so many sums that none waits for its last value: more than latency times throughput of
multiply-add on the CPUs we know (4 cycles, 2 a cycle), and few enough for 16 registers.
"""

from __future__ import annotations

from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

SYMBOL = "peak_loop"
_SUMS = 12


def peak_loop(target: Target) -> tuple[str, int]:
    """LLVM text of `void peak_loop(i64 n, float* results)` and the operations of one round."""
    lanes = target.lanes(DType.F32)
    vector = f"<{lanes} x float>"
    fused = f"{vector} @llvm.fmuladd.v{lanes}f32({vector}, {vector}, {vector})"
    half = f"<{', '.join(['float 0.5'] * lanes)}>"
    sums = range(_SUMS)
    starts = [f"  %s{k} = getelementptr {vector}, ptr %results, i64 {k}" for k in sums]
    loads = [f"  %l{k} = load {vector}, ptr %s{k}, align 4" for k in sums]
    phis = [f"  %a{k} = phi {vector} [ %l{k}, %entry ], [ %b{k}, %loop ]" for k in sums]
    name = f"@llvm.fmuladd.v{lanes}f32"
    steps = [
        f"  %b{k} = call {vector} {name}({vector} %a{k}, {vector} {half}, {vector} {half})"
        for k in sums
    ]
    stores = [f"  store {vector} %b{k}, ptr %s{k}, align 4" for k in sums]
    lines = [
        f"declare {fused}",
        f"define void @{SYMBOL}(i64 %n, ptr %results) {{",
        "entry:",
        *starts,
        *loads,
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *phis,
        *steps,
        "  %next = add i64 %i, 1",
        "  %more = icmp ult i64 %next, %n",
        "  br i1 %more, label %loop, label %end",
        "end:",
        *stores,
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n", _SUMS * lanes * 2


def result_floats(target: Target) -> int:
    """How many floats the results are."""
    return _SUMS * target.lanes(DType.F32)


READ_SYMBOL = "read_loop"


def read_loop(target: Target) -> tuple[str, int]:
    """LLVM text of `void read_loop(i64 n, i64* data, i64* results)` and the integers of one round.

    The results are sums of the data, as many as one round reads.
    """
    lanes = target.lanes(DType.F32) // 2
    vector, sums = f"<{lanes} x i64>", range(_SUMS)
    lines = [
        f"define void @{READ_SYMBOL}(i64 %n, ptr %data, ptr %results) {{",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  %a{k} = phi {vector} [ zeroinitializer, %entry ], [ %b{k}, %loop ]" for k in sums),
        f"  %first = mul i64 %i, {_SUMS}",
    ]
    for k in sums:
        lines += [
            f"  %n{k} = add i64 %first, {k}",
            f"  %p{k} = getelementptr {vector}, ptr %data, i64 %n{k}",
            f"  %l{k} = load {vector}, ptr %p{k}, align 8",
            f"  %b{k} = add {vector} %a{k}, %l{k}",
        ]
    lines += [
        "  %next = add i64 %i, 1",
        "  %more = icmp ult i64 %next, %n",
        "  br i1 %more, label %loop, label %end",
        "end:",
    ]
    for k in sums:
        lines += [
            f"  %s{k} = getelementptr {vector}, ptr %results, i64 {k}",
            f"  store {vector} %b{k}, ptr %s{k}, align 8",
        ]
    return "\n".join([*lines, "  ret void", "}"]) + "\n", _SUMS * lanes
