"""Run steps: every kernel call of a program with the places of its buffers filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from compiler.kernels.kernel import KernelCall, KernelProgram
from compiler.runtime.executable_spec import (
    CallStep,
    Condition,
    CopyStep,
    Location,
    Place,
    RunStep,
)
from compiler.runtime.memory_plan import MemoryPlan
from compiler.runtime.pack_constants import PackedConstants

if TYPE_CHECKING:
    from compiler.llvm import CompiledKernel


def run_steps(
    program: KernelProgram,
    compiled: Mapping[str, CompiledKernel],
    constants: PackedConstants,
    plan: MemoryPlan,
) -> tuple[RunStep, ...]:
    """The calls and copies that run the program, in order; `compiled` is by workload key."""
    steps: list[RunStep] = []
    for number, call in enumerate(program.calls):
        if not isinstance(call, KernelCall):
            continue
        buffers = [
            Location(Place.CONSTANT, constants.reads[number, position])
            if (number, position) in constants.reads
            else plan.location(value)
            for position, value in enumerate(call.inputs)
        ]
        buffers.append(plan.location(call.output))
        guards = tuple(Condition(plan.location(guard.value), guard.taken) for guard in call.guards)
        symbol, workspace = compiled[call.key].symbol, plan.workspaces[number]
        steps.append(CallStep(symbol, tuple(buffers), workspace, guards))
    for name, output in plan.copies:
        source = (
            Location(Place.CONSTANT, constants.outputs[name])
            if name in constants.outputs
            else plan.location(name)
        )
        steps.append(CopyStep(source, Location(Place.OUTPUT, output), program.types[name].bytes))
    return tuple(steps)
