"""Run steps: every kernel call of a program with the places of its buffers filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from compiler.kernels.kernel import FunctionCall, KernelCall, KernelProgram
from compiler.runtime.executable_spec import (
    CallStep,
    Condition,
    CopyStep,
    FunctionLink,
    FunctionStep,
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
    links = function_links(program)

    def operand(number: int, position: int, value: str) -> Location:
        if (number, position) in constants.reads:
            return Location(Place.CONSTANT, constants.reads[number, position])
        return plan.location(value)

    def conditions(call: KernelCall | FunctionCall) -> tuple[Condition, ...]:
        return tuple(Condition(plan.location(guard.value), guard.taken) for guard in call.guards)

    for number, call in enumerate(program.calls):
        if isinstance(call, FunctionCall):
            inputs = (
                operand(number, position, value) if value else None
                for position, value in enumerate(call.inputs)
            )
            steps.append(
                FunctionStep(
                    links.index(_link(call)),
                    (*inputs, *map(plan.location, call.outputs)),
                    (*call.operands, *call.results),
                    len(call.outputs),
                    call.arguments,
                    call.source,
                    conditions(call),
                )
            )
        if not isinstance(call, KernelCall):
            continue
        buffers = [operand(number, *item) for item in enumerate(call.inputs)]
        buffers.append(plan.location(call.output))
        symbol, workspace = compiled[call.key].symbol, plan.workspaces[number]
        steps.append(CallStep(symbol, tuple(buffers), workspace, conditions(call)))
    for name, output in plan.copies:
        if not program.types[name].bytes:
            continue
        source = (
            Location(Place.CONSTANT, constants.outputs[name])
            if name in constants.outputs
            else plan.location(name)
        )
        steps.append(CopyStep(source, Location(Place.OUTPUT, output), program.types[name].bytes))
    return tuple(steps)


def function_links(program: KernelProgram) -> tuple[FunctionLink, ...]:
    """The functions that a program calls, each once, in order of first use."""
    calls = (call for call in program.calls if isinstance(call, FunctionCall))
    return tuple(dict.fromkeys(map(_link, calls)))


def _link(call: FunctionCall) -> FunctionLink:
    return FunctionLink(call.name, call.version, call.symbol, call.context)
