"""The yardstick: a fixed piece of work whose time tells how fast a core runs at the moment.

It does nothing but dependent vector arithmetic in registers, so caches and memory do not matter:
what changes its time is the clock, or somebody else on the core.
"""

from __future__ import annotations

from functools import cache

from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

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
