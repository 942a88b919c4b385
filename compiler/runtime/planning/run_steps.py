"""Run steps: every kernel call of a program with the places of its buffers filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tunefarm.compiler.kernels.kernel import (
    FunctionCall,
    KernelCall,
    KernelProgram,
    LoopBegin,
    LoopEnd,
)
from tunefarm.compiler.runtime.planning.memory_plan import MemoryPlan
from tunefarm.compiler.runtime.planning.pack_constants import PackedConstants
from tunefarm.compiler.runtime.spec.executable_spec import (
    AgainStep,
    CallStep,
    Condition,
    CopyStep,
    FunctionLink,
    FunctionStep,
    Location,
    LoopStep,
    Place,
    RowStep,
    RunStep,
)

if TYPE_CHECKING:
    from tunefarm.compiler.llvm import CompiledKernel


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

    def conditions(call: KernelCall | FunctionCall | LoopBegin) -> tuple[Condition, ...]:
        # All of a loop that is left out is.
        asked = [guard for guard in call.guards if not any(guard in o.guards for o in loops)]
        return tuple(Condition(plan.location(guard.value), guard.taken) for guard in asked)

    def optional(number: int, position: int, value: str) -> Location | None:
        return operand(number, position, value) if value else None

    def copy(source: Location, value: str) -> CopyStep:
        return CopyStep(source, plan.location(value), program.types[value].bytes)

    loops: list[LoopBegin] = []  # those that the call is within
    for number, call in enumerate(program.calls):
        if isinstance(call, LoopBegin):
            limit, first, *initial = (optional(number, *item) for item in enumerate(call.inputs))
            copies = tuple(
                copy(place, state)
                for place, state in zip(initial, call.states, strict=True)
                if place is not None
            )
            index = plan.location(call.index) if call.index else None
            guards = conditions(call)
            steps.append(LoopStep(call.loop, limit, first, call.most, index, copies, guards))
            loops.append(call)
        if isinstance(call, LoopEnd):
            places = [optional(number, *item) for item in enumerate(call.inputs)]
            steps.append(_again(program, loops.pop(), call, places, plan))
        if isinstance(call, FunctionCall):
            inputs = [optional(number, *item) for item in enumerate(call.inputs)]
            sizes = inputs.pop() if call.axes else None
            link, buffers = links.index(_link(call)), (*inputs, *map(plan.location, call.outputs))
            about = (call.called, len(call.outputs), call.arguments, call.source, conditions(call))
            memory = (call.axes, sizes, plan.workspaces[number])
            steps.append(FunctionStep(link, buffers, *about, *memory))
        if not isinstance(call, KernelCall):
            continue
        operands = (operand(number, *item) for item in enumerate(call.inputs))
        read_and_written = (*operands, plan.location(call.output))
        symbol, workspace = compiled[call.key].symbol, plan.workspaces[number]
        steps.append(CallStep(symbol, read_and_written, workspace, conditions(call)))
    return (*steps, *_output_copies(program, constants, plan))


def _output_copies(
    program: KernelProgram, constants: PackedConstants, plan: MemoryPlan
) -> Iterator[CopyStep]:
    """The copies of outputs that are made elsewhere; of those without elements there are none."""
    for name, output in plan.copies:
        if not program.types[name].bytes:
            continue
        source = (
            Location(Place.CONSTANT, constants.outputs[name])
            if name in constants.outputs
            else plan.location(name)
        )
        yield CopyStep(source, Location(Place.OUTPUT, output), program.types[name].bytes)


def _again(
    program: KernelProgram,
    begin: LoopBegin,
    end: LoopEnd,
    places: Sequence[Location | None],
    plan: MemoryPlan,
) -> AgainStep:
    """The end of a loop's round; `places` are those of the end's inputs."""
    again, *values = places
    states, collected = values[: len(end.following)], values[len(end.following) :]
    following = tuple(
        CopyStep(place, plan.location(state), program.types[state].bytes)
        for place, state in zip(states, begin.states, strict=True)
        if place is not None and place != plan.location(state)
    )
    rows = tuple(
        RowStep(place, plan.location(row), program.types[value].bytes, number in end.backward)
        for number, (place, value, row) in enumerate(
            zip(collected, end.collected, end.rows, strict=True)
        )
        if place is not None and row
    )
    count, going = (plan.location(name) if name else None for name in end.results[-2:])
    return AgainStep(end.loop, again, rows, following, count, going)


def function_links(program: KernelProgram) -> tuple[FunctionLink, ...]:
    """The functions that a program calls, each once, in order of first use."""
    calls = (call for call in program.calls if isinstance(call, FunctionCall))
    return tuple(dict.fromkeys(map(_link, calls)))


def _link(call: FunctionCall) -> FunctionLink:
    return FunctionLink(call.name, call.version, call.symbol, call.context)
