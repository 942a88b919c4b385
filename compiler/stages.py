"""Stages: runs one step of the pipeline; verifies its program, times it, dumps it on demand."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from compiler.errors import SettingsError
from compiler.graph.ir import Graph
from compiler.graph.printer import format_graph
from compiler.graph.verify import verify_graph
from compiler.kernels.kernel import KernelCall, KernelProgram
from compiler.kernels.printer import format_kernel
from compiler.runtime.verify_program import verify_program

# The name of a stage ("all" for every one), printed to stderr; or a function of (stage, program).
DumpAfter: TypeAlias = str | Callable[[str, str], None] | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds that a stage took, its verification included."""

    name: str
    seconds: float


class Stages:
    """Runs the named stages of a pipeline and keeps their times."""

    def __init__(self, names: Sequence[str], dump_after: DumpAfter = None) -> None:
        """`names` are the pipeline's stages; `SettingsError` if `dump_after` names none of them."""
        if isinstance(dump_after, str) and dump_after not in (*names, "all"):
            near = difflib.get_close_matches(dump_after, (*names, "all"), n=1)
            hint = f"did you mean {near[0]!r}?" if near else ""
            raise SettingsError(
                f"no stage {dump_after!r}; the stages are {', '.join(names)}", hint=hint
            )
        self._dump_after = dump_after
        self.times: list[StageTime] = []

    def run(self, name: str, stage: Callable[[], T]) -> T:
        """Run `stage`, verify the program it returns, and dump it if that was asked for.

        Every program is verified where it is made, so the next stage starts from a verified one.
        """
        start = time.perf_counter()
        program = stage()
        verify(program)
        self.times.append(StageTime(name, time.perf_counter() - start))
        self.observe(name, program)
        return program

    def observe(self, name: str, program: object) -> None:
        """Dump the program that a stage, or a pass within one, has made if that was asked for."""
        if callable(self._dump_after):
            self._dump_after(name, format_program(program))
        elif self._dump_after in (name, "all"):
            print(f"after {name}:\n{format_program(program)}", file=sys.stderr)


def verify(program: object) -> None:
    """Raise `VerifyError` if a program breaks a rule of its representation."""
    if isinstance(program, Graph):
        verify_graph(program)
    elif isinstance(program, KernelProgram):
        verify_program(program)


def format_program(program: object) -> str:
    """A program as text that a person can read."""
    if isinstance(program, Graph):
        return format_graph(program)
    if isinstance(program, KernelProgram):
        return _format_kernel_program(program)
    if isinstance(program, dict):
        return "\n".join(f"{key}: {value}" for key, value in program.items())
    if isinstance(program, tuple):
        return "\n".join(map(str, program))
    if isinstance(program, bytes):
        return f"{len(program)} bytes of object code"
    return str(program)


def _format_kernel_program(program: KernelProgram) -> str:
    lines = [f"program {program.name}({', '.join(program.inputs)})"]
    for call in program.calls:
        if isinstance(call, KernelCall):
            arguments = ", ".join(call.inputs)
            lines.append(f"  {call.output} = {call.kernel.name}<{call.key}>({arguments})")
        else:
            lines.append(f"  {call.output} = view {call.input} as {program.types[call.output]}")
    lines.append(f"  return {', '.join(program.outputs)}")
    kernels = {call.key: call.kernel for call in program.calls if isinstance(call, KernelCall)}
    lines.extend(f"\n<{key}>\n{format_kernel(kernel)}" for key, kernel in kernels.items())
    return "\n".join(lines)
