"""Kernel + schedule -> LLVM text -> machine code."""

from __future__ import annotations

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.loops.ir import For, LoopKind, LoopNest, walk
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.packing import PackLayout
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import Algorithm


@frozen
class CompiledKernel:
    """Object code of one kernel, and what its caller must provide.

    `not_vectorised` says why most of its work is scalar, empty where it is not or nobody asked.
    """

    symbol: str
    object_code: bytes
    workspace_bytes: int
    constant_layouts: tuple[tuple[str, ConstantLayout], ...]
    parallel: bool
    algorithm: Algorithm
    not_vectorised: str = ""

    def __str__(self) -> str:
        text = f"{self.symbol}: {len(self.object_code)} bytes of object code"
        return text + (f", {self.workspace_bytes} of workspace" if self.workspace_bytes else "")


@frozen
class EmittedKernel:
    """One kernel as a module of LLVM, the schedule it has, and what its caller must provide."""

    symbol: str
    text: str
    workspace_bytes: int
    parallel: bool
    schedule: Schedule

    def __str__(self) -> str:
        return self.text

    def compile(self, target: Target) -> CompiledKernel:
        """Its machine code, in any thread: LLVM leaves the interpreter to others meanwhile."""
        code, steps = object_code(self.text, target), self.schedule
        layouts, algorithm = constant_layouts(steps), steps.algorithm
        size, parallel = self.workspace_bytes, self.parallel
        return CompiledKernel(self.symbol, code, size, layouts, parallel, algorithm)


def emit_loops(
    nest: LoopNest, schedule: Schedule, target: Target, symbol: str, fixed_rounding: bool = False
) -> EmittedKernel:
    """The nest that `schedule` gave as LLVM for `target`; `LoweringError` if it cannot be.

    `fixed_rounding` is that of `emit_kernel`.
    """
    text, workspace_bytes = emit_kernel(nest, target, symbol, fixed_rounding)
    return EmittedKernel(symbol, text, workspace_bytes, _is_parallel(nest), schedule)


def compile_kernel(
    kernel: FusedKernel,
    schedule: Schedule,
    target: Target,
    symbol: str = "kernel",
    fixed_rounding: bool = False,
) -> CompiledKernel:
    """Lower, emit and compile; `ScheduleError` or `LoweringError` if the two do not fit."""
    nest = lower(kernel, schedule)
    return emit_loops(nest, schedule, target, symbol, fixed_rounding).compile(target)


def constant_layouts(schedule: Schedule) -> tuple[tuple[str, ConstantLayout], ...]:
    """The layouts that a schedule wants constants in, by buffer."""
    packs = (step for step in schedule.steps if isinstance(step, PackLayout))
    return tuple((step.buffer, step.layout) for step in packs)


def _is_parallel(nest: LoopNest) -> bool:
    return any(
        isinstance(statement, For) and statement.kind is LoopKind.PARALLEL
        for statement in walk(nest.body)
    )
