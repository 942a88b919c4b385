"""Toolchain: the C compiler that links models for a target, and the tool that edits their symbols.

For this machine that is `cc`; for another architecture a cross compiler, by the name that Debian
and others give it (`aarch64-linux-gnu-gcc`), or clang, whose LLVM makes code for all.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tunefarm.compiler.errors import ExportError
from tunefarm.compiler.runtime.machine.check_target import platform_of
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.frozen import frozen

_INSTALL = "install a C compiler, e.g. apt-get install gcc libc6-dev"
_SECONDS = 30.0
_NAME = re.compile(r"(?P<prefix>.*-)?(gcc|g\+\+|cc|clang|clang\+\+)(-[\d.]+)?")


@frozen
class Toolchain:
    """The command of a C compiler, which links too, and of objcopy; "" where that is not there."""

    compiler: tuple[str, ...]
    objcopy: str

    @property
    def command(self) -> str:
        """The C compiler as a user types it."""
        return shlex.join(self.compiler)


def find_toolchain(
    target: Target, compiler: str | None = None, *, static: bool = False
) -> Toolchain:
    """The tools that make C libraries for `target`; `compiler` is the C compiler, if one is named.

    `static` asks for objcopy too. Raises `ExportError`, in one line, if a tool is not there or
    makes code for other machines.
    """
    made_for = platform_of(target)
    if not made_for.endswith(" linux"):
        raise ExportError(
            f"C libraries are made for Linux, the model is built for {made_for}",
            hint="emit llvm or asm, and compile that there",
        )
    found = _named(compiler) if compiler is not None else _usual(target)
    if found != ("cc",) or compiler is not None:
        _check_machine(found, target)
    objcopy = _objcopy(found)
    if static and not objcopy:
        wanted = _objcopy_names(found)[0]
        raise ExportError(
            f"there is no {wanted} on PATH to link the model with", hint=_hint(target)
        )
    return Toolchain(found, objcopy)


def _named(compiler: str) -> tuple[str, ...]:
    """The compiler that a user names, with arguments if there are any."""
    try:
        words = tuple(shlex.split(compiler))
    except ValueError:
        words = ()
    if not words or shutil.which(words[0]) is None:
        raise ExportError(
            f"there is no C compiler {compiler!r} on PATH", hint="name one, e.g. --cc gcc"
        )
    return words


def _usual(target: Target) -> tuple[str, ...]:
    """The compiler for the target that is there."""
    if platform_of(target) == platform_of(host_target()):
        if shutil.which("cc") is None:
            raise ExportError("there is no cc on PATH to link the model with", hint=_INSTALL)
        return ("cc",)
    cross = f"{_architecture(target)}-linux-gnu-gcc"
    if shutil.which(cross) is not None:
        return (cross,)
    if shutil.which("clang") is not None:
        return ("clang", f"--target={_architecture(target)}-linux-gnu")
    raise ExportError(
        f"there is no cross compiler on PATH that links for {platform_of(target)}: no {cross}, and "
        "no clang",
        hint=_hint(target),
    )


def _check_machine(compiler: tuple[str, ...], target: Target) -> None:
    """Raise `ExportError` unless the compiler says that it makes code for the target's machines."""
    try:
        done = subprocess.run(
            [*compiler, "-dumpmachine"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        machine = done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        machine = ""
    command = shlex.join(compiler)
    if not machine:
        raise ExportError(f"{command} is not a C compiler: it reports no target")
    architecture = machine.split("-")[0]
    if architecture != _architecture(target) or "linux" not in machine:
        raise ExportError(
            f"{command} makes code for {machine}, the model is built for {platform_of(target)}",
            hint=_hint(target),
        )


def _objcopy(compiler: tuple[str, ...]) -> str:
    return next((name for name in _objcopy_names(compiler) if shutil.which(name)), "")


def _objcopy_names(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """What the tool next to this compiler may be called."""
    if compiler[0].rpartition("/")[2].startswith("clang"):
        return "llvm-objcopy", "objcopy"
    match = _NAME.fullmatch(compiler[0])
    prefix = match["prefix"] if match is not None and match["prefix"] else ""
    return f"{prefix}objcopy", "llvm-objcopy"


def _architecture(target: Target) -> str:
    return platform_of(target).split()[0]


def _hint(target: Target) -> str:
    if platform_of(target) == platform_of(host_target()):
        return _INSTALL
    package = f"gcc-{_architecture(target).replace('_', '-')}-linux-gnu"
    return f"apt-get install {package}, or name a cross compiler: --cc COMPILER"


_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-pthread")


def compile_c(work: Path, tools: Toolchain, name: str, text: str) -> None:
    """Write C code to `work` and compile it to NAME.o."""
    (work / f"{name}.c").write_text(text, encoding="utf-8")
    run_tool(work, *tools.compiler, "-c", *_FLAGS, "-o", f"{name}.o", f"{name}.c")


def localise(work: Path, tools: Toolchain, file: str, kept: Sequence[str]) -> None:
    """Have an object file define no symbols that others see, but these."""
    keep = (f"--keep-global-symbol={symbol}" for symbol in kept)
    run_tool(work, tools.objcopy, *keep, file)


def run_tool(work: Path, tool: str, *arguments: str) -> None:
    """Run a tool inside of `work`; `ExportError` with what it says where it fails."""
    done = subprocess.run(
        ["env", "TMPDIR=.", tool, *arguments],  # its temporary files go with `work`
        cwd=work,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "error" in line), (lines or ["no reason"])[-1])
        raise ExportError(f"{tool} failed with code {done.returncode}: {reason.strip()}")
