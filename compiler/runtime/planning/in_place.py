"""Outputs that may be written over an input: caches that a step extends."""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.kernels.kept_inputs import inputs_kept
from tunefarm.compiler.kernels.kernel import (
    Call,
    KernelCall,
    KernelProgram,
    ViewCall,
    reads_of,
    written_by,
)
from tunefarm.compiler.runtime.planning.memory_plan import MemoryPlan
from tunefarm.compiler.runtime.spec.executable_spec import Location, Place


def outputs_in_place(program: KernelProgram, memory: MemoryPlan) -> tuple[tuple[str, str], ...]:
    """The outputs that may lie in an input's memory, each with that input.

    One kernel reads the input and writes the output; others read the output afterwards at most.
    """
    readers = _by_memory(program, memory, reads_of)
    writers = _by_memory(program, memory, written_by)
    returned = {memory.storage[name].root for name in program.outputs}
    taken = dict.fromkeys(returned & set(program.inputs))
    found: list[tuple[str, str]] = []
    for number, name in enumerate(program.outputs):
        calls = writers.get(memory.storage[name].root, [])
        writer = calls[0] if len(calls) == 1 else None
        if not isinstance(writer, KernelCall) or (
            memory.location(writer.output) != Location(Place.OUTPUT, number)
            or program.types[writer.output].bytes != program.types[name].bytes
        ):
            continue
        for position in inputs_kept(writer.kernel):
            operand = writer.inputs[position]
            if operand in program.inputs and operand not in taken and readers[operand] == [writer]:
                taken[operand] = None
                found.append((name, operand))
                break
    return tuple(found)


def _by_memory(
    program: KernelProgram, memory: MemoryPlan, names_of: Callable[[Call], tuple[str, ...]]
) -> dict[str, list[Call]]:
    """The calls that read or write each memory, by the name of its value."""
    found: dict[str, list[Call]] = {}
    for call in program.calls:
        if isinstance(call, ViewCall):
            continue
        for root in dict.fromkeys(memory.storage[name].root for name in names_of(call)):
            found.setdefault(root, []).append(call)
    return found
