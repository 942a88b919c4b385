"""Calls of the tools that make C libraries, all inside of one scratch folder on relative names."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tunefarm.compiler.errors import ExportError
from tunefarm.compiler.runtime.machine.toolchain import Toolchain

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
