"""Whether a process may use matrix tiles (AMX): the CPU, the kernel and a trial are asked.

A CPU may have tiles that its operating system does not keep, or that a virtual machine shows
without a palette; Linux hands them out on demand only (Documentation/arch/x86/xstate.rst), to a
process and what it forks, and exec takes them away again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from functools import cache
from typing import NamedTuple, Protocol

from tunefarm.compiler.machine.amx_set_up import CONFIGURATION_BYTES, FULL_PALETTE, TilePalette
from tunefarm.compiler.machine.executable_memory import refusal

TILE_FEATURES = "amx-"  # LLVM's names of the features that need tiles begin so
_TILE_DATA = 18  # the component of the processor's extended state
_PERMIT, _ARCH_PRCTL = 0x1023, 158  # ARCH_REQ_XCOMP_PERM, and the system call's number
_TILES_IN_XCR0 = 0x60000
_TILE_BYTES = 1024


class Trial(NamedTuple):
    """How a trial of tile instructions went: `wait_status` is 0 for a child that ended itself."""

    wait_status: int
    right: bool


class TileMachine(Protocol):
    """What is asked of the machine; tests give answers of their own."""

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        """The registers EAX, EBX, ECX and EDX that CPUID gives; 0 beyond its highest leaf."""

    def xcr0(self) -> int:
        """Which registers the operating system keeps."""

    def permit(self) -> int:
        """Ask the kernel for tile state; 0 or the error's number."""

    def try_tiles(self) -> Trial | None:
        """Run tile instructions in a child process; None where there can be none."""


def tile_problem(machine: TileMachine) -> str:
    """Why this process cannot use matrix tiles, on one line; "" if it can, and may from now on."""
    if not machine.cpuid(7, 0)[3] >> 24 & 1:
        return "the CPU has none"
    if not machine.cpuid(1, 0)[2] >> 27 & 1 or machine.xcr0() & _TILES_IN_XCR0 != _TILES_IN_XCR0:
        return "the operating system does not keep them"
    problem = _palette_problem(machine)
    if problem:
        return problem
    error = machine.permit()
    if error:
        return f"the kernel does not permit them: {os.strerror(error)}"
    return _trial_problem(machine.try_tiles())


def _palette_problem(machine: TileMachine) -> str:
    if machine.cpuid(0x1D, 0)[0] < 1:
        return "the CPU, or the virtual machine it belongs to, has no palette of them"
    _, named, rows, _ = machine.cpuid(0x1D, 1)
    found, needed = TilePalette(named >> 16, rows & 0xFFFF, named & 0xFFFF), FULL_PALETTE
    if any(have < want for have, want in zip(found, needed, strict=True)):
        sizes = f"{found.tiles} of {found.rows} rows of {found.row_bytes} bytes"
        return f"the CPU has {sizes}, less than the code uses"
    return ""


def _trial_problem(trial: Trial | None) -> str:
    if trial is None:
        return ""
    if os.WIFSIGNALED(trial.wait_status):
        return f"a trial of them ended with signal {os.WTERMSIG(trial.wait_status)}"
    return "" if trial.right else "a trial of them lost what they held"


@cache
def host_tile_problem() -> str:
    """`tile_problem` of this machine, found out once in each process.

    Where no code can be made that asks the CPU, Linux is asked alone.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "only Linux on x86-64 is known to have them"
    try:
        return _linux_problem() if refusal() else tile_problem(HostMachine())
    except (OSError, RuntimeError) as error:
        return f"this machine cannot be asked: {error}"


def _linux_problem() -> str:
    if "amx_tile" not in linux_flags():
        return "Linux shows none"
    error = _permit()
    return f"the kernel does not permit them: {os.strerror(error)}" if error else ""


_FLAGS_WITHIN = 16384  # bytes of /proc/cpuinfo, in which the first CPU's flags are


@cache
def linux_flags() -> frozenset[str]:
    """The features of this machine's first CPU, by Linux's names; none where they are not said.

    Linux shows none whose registers it does not keep.
    """
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = file.read(_FLAGS_WITHIN).splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), ":")
    return frozenset(flags.partition(":")[2].split())


def _permit() -> int:
    """Ask the kernel for tile state; 0 or the error's number."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    syscall.argtypes = [ctypes.c_long] * 3
    return 0 if syscall(_ARCH_PRCTL, _PERMIT, _TILE_DATA) == 0 else ctypes.get_errno()


_QUESTIONS = """
define void @ask_cpuid(i32 %leaf, i32 %subleaf, ptr %to) {
  %found = call { i32, i32, i32, i32 } asm sideeffect "cpuid",
    "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 %leaf, i32 %subleaf)
  store { i32, i32, i32, i32 } %found, ptr %to
  ret void
}
define i64 @ask_xcr0() {
  %found = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 0)
  %low = extractvalue { i32, i32 } %found, 0
  %wide = zext i32 %low to i64
  ret i64 %wide
}
"""

# clone without SIGCHLD, so that no handler of the program hears of the child, which touches nothing
# but the page and asks for no lock. A signal's default action ends it, without a core file.
_TRIAL = """
declare i64 @syscall(i64, ...)
declare ptr @signal(i32, ptr)
declare ptr @__errno_location()
define i64 @try_in_child(ptr %page, ptr %status) {
entry:
  %child = call i64 (i64, ...) @syscall(i64 56, i64 0, i64 0, i64 0, i64 0, i64 0)
  %inside = icmp eq i64 %child, 0
  br i1 %inside, label %within, label %without
within:
  %prctl = call i64 (i64, ...) @syscall(i64 157, i64 4, i64 0, i64 0, i64 0, i64 0)
  %illegal = call ptr @signal(i32 4, ptr null)
  %bus = call ptr @signal(i32 7, ptr null)
  %segment = call ptr @signal(i32 11, ptr null)
  call void @work(ptr %page)
  %left = call i64 (i64, ...) @syscall(i64 231, i64 0)
  unreachable
without:
  %none = icmp slt i64 %child, 0
  br i1 %none, label %failed, label %wait
wait:
  %ended = call i64 (i64, ...) @syscall(i64 61, i64 %child, ptr %status, i64 1073741824, ptr null)
  %waited = icmp eq i64 %ended, %child
  br i1 %waited, label %done, label %again
again:
  %place = call ptr @__errno_location()
  %error = load i32, ptr %place
  %interrupted = icmp eq i32 %error, 4
  br i1 %interrupted, label %wait, label %failed
done:
  ret i64 0
failed:
  ret i64 -1
}
"""

_SOURCE, _RESULT = 1024, 1024 + FULL_PALETTE.tiles * _TILE_BYTES


def _tile_work() -> str:
    """`work`: fill all tiles, let others run meanwhile, and store the tiles again."""
    lines = ["call void @llvm.x86.ldtilecfg(ptr %page)"]

    def move(name: str, tile: int, begin: int) -> list[str]:
        place = f"%{name}{tile}"
        return [
            f"{place} = getelementptr i8, ptr %page, i64 {begin + tile * _TILE_BYTES}",
            f"call void @llvm.x86.{name}(i8 {tile}, ptr {place}, i64 64)",
        ]

    tiles = range(FULL_PALETTE.tiles)
    for tile in tiles:
        lines += move("tileloadd64", tile, _SOURCE)
    lines += [f"%yield{turn} = call i64 (i64, ...) @syscall(i64 24)" for turn in tiles]
    for tile in tiles:
        lines += move("tilestored64", tile, _RESULT)
    body = "\n  ".join([*lines, "call void @llvm.x86.tilerelease()", "ret void"])
    return (
        "declare void @llvm.x86.ldtilecfg(ptr)\ndeclare void @llvm.x86.tilerelease()\n"
        "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)\n"
        "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)\n"
        f'define void @work(ptr %page) "target-features"="+amx-tile" {{\n  {body}\n}}\n'
    )


class HostMachine:
    """The machine that this process runs on: Linux on x86-64."""

    def __init__(self, work: str | None = None) -> None:
        """`work` is LLVM IR of what a trial's child does, by default with tiles.

        Raises RuntimeError where code cannot be made.
        """
        if reason := refusal():
            raise RuntimeError(f"code may not be run here: {reason}")
        import llvmlite.binding as llvm  # 60 ms, which CPUs without tiles go without

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        text = _QUESTIONS + _TRIAL + (_tile_work() if work is None else work)
        library = llvm.JITLibraryBuilder().add_current_process().add_ir(text)
        for symbol in ("ask_cpuid", "ask_xcr0", "try_in_child"):
            library.export_symbol(symbol)
        self._code = library.link(jit, "tiles")
        self._jit = jit  # set after the code, so that it is also destroyed after it

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        """See `TileMachine`."""
        ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(
            self._code["ask_cpuid"]
        )
        registers = (ctypes.c_uint32 * 4)()
        ask(leaf & 1 << 31, 0, registers)
        if registers[0] < leaf:
            return 0, 0, 0, 0
        ask(leaf, subleaf, registers)
        return registers[0], registers[1], registers[2], registers[3]

    def xcr0(self) -> int:
        """See `TileMachine`."""
        return int(ctypes.CFUNCTYPE(ctypes.c_uint64)(self._code["ask_xcr0"])())

    def permit(self) -> int:
        """See `TileMachine`."""
        return _permit()

    def try_tiles(self) -> Trial | None:
        """See `TileMachine`."""
        size = FULL_PALETTE.tiles * _TILE_BYTES
        source = bytes((7 * i + i // 251) % 256 for i in range(size))
        run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(
            self._code["try_in_child"]
        )
        with mmap.mmap(-1, _RESULT + size) as page:  # shared with the child
            page[:CONFIGURATION_BYTES] = FULL_PALETTE.configuration()
            page[_SOURCE:_RESULT] = source
            shared, status = ctypes.c_char.from_buffer(page), ctypes.c_int()
            failed = run(ctypes.addressof(shared), ctypes.addressof(status))
            del shared
            right = page[_RESULT:] == source
        return None if failed else Trial(status.value, right)
