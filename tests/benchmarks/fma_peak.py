"""The FMA peak and the copy bandwidth of one core: what kernels are compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

CHAINS, UNROLL, ROUNDS = 12, 8, 1000


def fma_peak(target: Target) -> tuple[Callable[[], None], int]:
    """A function that does nothing but independent multiply-adds, and its FLOPs per call."""
    lanes = target.lanes(DType.F32)
    vector = f"<{lanes} x float>"
    fma = f"@llvm.fma.v{lanes}f32"
    lines = [
        f"declare {vector} {fma}({vector}, {vector}, {vector})",
        "define void @peak(ptr %p) {",
        "entry:",
        f"  %x = load {vector}, ptr %p, align 4",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %n, %loop ]",
    ]
    last = UNROLL - 1
    lines += [
        f"  %a{c} = phi {vector} [ %x, %entry ], [ %b{c}.{last}, %loop ]" for c in range(CHAINS)
    ]
    for step in range(UNROLL):
        for c in range(CHAINS):
            source = f"%b{c}.{step - 1}" if step else f"%a{c}"
            arguments = f"{vector} %x, {vector} %x, {vector} {source}"
            lines.append(f"  %b{c}.{step} = call {vector} {fma}({arguments})")
    lines += [
        "  %n = add i64 %i, 1",
        f"  %more = icmp slt i64 %n, {ROUNDS}",
        "  br i1 %more, label %loop, label %done",
        "done:",
    ]
    total = f"%b0.{last}"
    for c in range(1, CHAINS):
        lines.append(f"  %s{c} = fadd {vector} {total}, %b{c}.{last}")
        total = f"%s{c}"
    lines += [f"  store {vector} {total}, ptr %p, align 4", "  ret void", "}"]
    code = LoadedCode([object_code("\n".join(lines), target)], ["peak"])
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("peak"))
    buffer = np.zeros(64, np.float32)

    def run(_alive: object = code) -> None:
        function(buffer.ctypes.data)

    return run, CHAINS * UNROLL * ROUNDS * lanes * 2


def copy_bandwidth(size: int) -> tuple[Callable[[], None], int]:
    """A copy of `size` bytes, and the bytes that it reads and writes."""
    source, destination = np.ones(size, np.uint8), np.zeros(size, np.uint8)

    def run() -> None:
        np.copyto(destination, source)

    return run, 2 * size
