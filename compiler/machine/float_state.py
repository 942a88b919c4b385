"""How floats of a thread are computed with: denormal numbers flushed to zero, or as IEEE 754 says.

A register of each thread says it, which belongs to whoever calls: what flushes gives it back as it
was. On x86-64 that is MXCSR (Intel's manual, volume 1, 10.2.3), on 64-bit Arm FPCR (Arm's manual
for the A profile, C5.2).
"""

from __future__ import annotations

from typing import NamedTuple


class _Register(NamedTuple):
    """The register of a family of CPUs.

    `bits` make it flush: results to zero and operands to zero. `read` and `write` are the bodies of
    functions that return it, and that set it to `%state`; both are i64.
    """

    bits: int
    declarations: str
    read: str
    write: str


_REGISTERS = {
    "x86_64": _Register(
        bits=0x8040,
        declarations="declare void @llvm.x86.sse.stmxcsr(ptr)\n"
        "declare void @llvm.x86.sse.ldmxcsr(ptr)\n",
        read="""\
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %short = load i32, ptr %place
  %now = zext i32 %short to i64
""",
        write="""\
  %place = alloca i32
  %short = trunc i64 %state to i32
  store i32 %short, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
""",
    ),
    "aarch64": _Register(
        bits=1 << 24,
        declarations="declare i64 @llvm.aarch64.get.fpcr()\n"
        "declare void @llvm.aarch64.set.fpcr(i64)\n",
        read="  %now = call i64 @llvm.aarch64.get.fpcr()\n",
        write="  call void @llvm.aarch64.set.fpcr(i64 %state)\n",
    ),
}
_NONE = _Register(0, "", "  %now = add i64 0, 0\n", "")


def float_state_ir(triple: str, name: str) -> str:
    """Functions that keep a thread's state of floats, on CPUs of an LLVM triple:

    `i64 name.get()`, `void name.set(i64)`, and `i64 name.flush()`, which sets the state that
    flushes and returns the one before. They are calls, round which no arithmetic is moved; of CPUs
    that nothing is known of they do nothing.
    """
    register = _register(triple)
    return (
        f"{register.declarations}"
        f"define internal i64 @{name}.get() noinline nounwind {{\n"
        f"{register.read}  ret i64 %now\n}}\n"
        f"define internal void @{name}.set(i64 %state) noinline nounwind {{\n"
        f"{register.write}  ret void\n}}\n"
        f"define internal i64 @{name}.flush() noinline nounwind {{\n"
        f"  %before = call i64 @{name}.get()\n"
        f"  %flushing = or i64 %before, {register.bits}\n"
        f"  call void @{name}.set(i64 %flushing)\n"
        "  ret i64 %before\n}\n"
    )


def _register(triple: str) -> _Register:
    return _REGISTERS.get(triple.split("-")[0], _NONE)
