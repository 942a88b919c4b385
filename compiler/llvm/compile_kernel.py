"""Kernel + schedule -> machine code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.kernels.kernel import FusedKernel
from compiler.llvm.emit_kernel import emit_kernel
from compiler.llvm.machine import object_code
from compiler.loops.constant_layout import ConstantLayout
from compiler.loops.ir import For, LoopKind, LoopNest, walk
from compiler.schedule.apply_schedule import lower
from compiler.schedule.schedule import Schedule
from compiler.schedule.steps.pack_layout import PackLayout
from compiler.target import Target
from compiler.types.numerics import Algorithm


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Object code of one kernel, and what its caller must provide."""

    symbol: str
    object_code: bytes
    workspace_bytes: int
    constant_layouts: tuple[tuple[str, ConstantLayout], ...]
    parallel: bool
    algorithm: Algorithm


def compile_kernel(
    kernel: FusedKernel, schedule: Schedule, target: Target, symbol: str = "kernel"
) -> CompiledKernel:
    """Lower, emit and compile; `ScheduleError` or `LoweringError` if the two do not fit."""
    return begin_kernel(kernel, schedule, target, symbol)()


def begin_kernel(
    kernel: FusedKernel, schedule: Schedule, target: Target, symbol: str = "kernel"
) -> Callable[[], CompiledKernel]:
    """Lower and emit, as `compile_kernel` does; what is returned compiles, in any thread.

    LLVM leaves the interpreter to other threads while it compiles.
    """
    nest = lower(kernel, schedule)
    text, workspace = emit_kernel(nest, target, symbol)
    layouts, parallel = constant_layouts(schedule), _is_parallel(nest)
    algorithm = schedule.algorithm

    def finish() -> CompiledKernel:
        code = object_code(text, target)
        return CompiledKernel(symbol, code, workspace, layouts, parallel, algorithm)

    return finish


def constant_layouts(schedule: Schedule) -> tuple[tuple[str, ConstantLayout], ...]:
    """The layouts that a schedule wants constants in, by buffer."""
    packs = (step for step in schedule.steps if isinstance(step, PackLayout))
    return tuple((step.buffer, step.layout) for step in packs)


def _is_parallel(nest: LoopNest) -> bool:
    return any(
        isinstance(statement, For) and statement.kind is LoopKind.PARALLEL
        for statement in walk(nest.body)
    )
