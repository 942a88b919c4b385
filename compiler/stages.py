"""Stages: runs one step of the pipeline, verifies its program and dumps it on demand."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, TypeVar

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.printer import format_graph
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.kernels.kernel import KernelProgram
from tunefarm.compiler.kernels.printer import format_kernel_program
from tunefarm.compiler.kernels.verify_program import verify_program
from tunefarm.compiler.loops.ir import LoopNest
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops

ALL = "all"

# The name of a stage (ALL for every one), printed to stderr; or a function of (stage, program).
DumpAfter: TypeAlias = str | Callable[[str, str], None] | None
T = TypeVar("T")


def check_stage(dump_after: str, names: Sequence[str]) -> None:
    """Raise `SettingsError`, with the nearest, unless it is one of these stages, or ALL."""
    if dump_after not in (*names, ALL):
        near = difflib.get_close_matches(dump_after, (*names, ALL), n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise SettingsError(
            f"no stage {dump_after!r}; the stages are {', '.join(names)}", hint=hint
        )


class Stages:
    """Runs the named stages of a pipeline."""

    def __init__(
        self,
        names: Sequence[str],
        dump_after: DumpAfter = None,
        kernels: Collection[str] | None = None,
        keep: Collection[str] = (),
    ) -> None:
        """`names` are the pipeline's stages; `SettingsError` if `dump_after` names none of them.

        Of the stages that each kernel goes through by itself those of `kernels` are dumped, by
        workload key; all if None. The programs of the stages `keep` are `kept`, by stage and key.
        """
        if isinstance(dump_after, str):
            check_stage(dump_after, names)
        self._dump_after = dump_after
        self._kernels = kernels
        self.kept: dict[str, dict[str, object]] = {name: {} for name in keep}
        self._verified: dict[type, object] = {}  # the last program of each representation

    def run(self, name: str, stage: Callable[[], T], kernel: str = "") -> T:
        """Run `stage`, verify the program it returns, and dump it if that was asked for.

        Every program is verified where it is made, so the next stage starts from a verified one,
        and what both share is not looked at again. `kernel` is the workload key of the kernel that
        it is a program of, if it is of one.
        """
        program = stage()
        verify(program, self._verified.get(type(program)))
        self.observe(name, program, kernel)
        return program

    def observe(self, name: str, program: object, kernel: str = "") -> None:
        """Dump or keep the program that a stage, or a pass within one, has made, if asked for.

        It has been verified.
        """
        self._verified[type(program)] = program
        if name in self.kept:
            self.kept[name][kernel] = program
        if not self._dumps(name, kernel):
            return
        if callable(self._dump_after):
            self._dump_after(name, format_program(program))
        else:
            of = f" of {kernel}" if kernel else ""
            print(f"after {name}{of}:\n{format_program(program)}", file=sys.stderr)

    def wants(self, name: str, kernel: str = "") -> bool:
        """Whether the program that this stage makes is asked for."""
        return name in self.kept or self._dumps(name, kernel)

    def _dumps(self, name: str, kernel: str) -> bool:
        if kernel and self._kernels is not None and kernel not in self._kernels:
            return False
        return callable(self._dump_after) or self._dump_after in (name, ALL)


def verify(program: object, verified: object = None) -> None:
    """Raise `VerifyError` if a program breaks a rule of its representation.

    `verified` is one of the same representation that breaks none.
    """
    if type(program) in _REPRESENTATIONS:
        _REPRESENTATIONS[type(program)][0](program, verified)


def format_program(program: object) -> str:
    """A program as text that a person can read."""
    if type(program) in _REPRESENTATIONS:
        return _REPRESENTATIONS[type(program)][1](program)
    if isinstance(program, dict):
        return "\n".join(f"{key}: {value}" for key, value in program.items())
    if isinstance(program, tuple):
        return "\n".join(map(str, program))
    if isinstance(program, bytes):
        return f"{len(program)} bytes of object code"
    return str(program)


# What each representation is verified and printed by; what is not here is plain data.
_REPRESENTATIONS: dict[type, tuple[Callable[[Any, Any], None], Callable[[Any], str]]] = {
    Graph: (verify_graph, format_graph),
    KernelProgram: (verify_program, format_kernel_program),
    LoopNest: (lambda nest, verified: verify_loops(nest), format_loops),
}
