"""Outputs that may be written over an input: caches that a step extends.

    present[i] = select(i < past length, past[i], new[i - past length])

The kernel that makes such an output reads each element of the input at the place that it writes,
and writes it back unchanged or something that does not depend on it. So both may be one memory: an
element that is computed twice, by overlapping tiles or by two threads, is the same both times.
"""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.expr.nodes import Load, Select, index, integer
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.kernel import (
    Call,
    FusedKernel,
    KernelCall,
    KernelProgram,
    ViewCall,
    reads_of,
    written_by,
)
from tunefarm.compiler.kernels.stage import Stage
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


def inputs_kept(kernel: FusedKernel) -> tuple[int, ...]:
    """The inputs, by number, that the result may be written over.

    They have its type, and each of their loads is an outcome of the selection that the result is,
    at the element that is written.
    """
    output = kernel.output
    if output.combiner:
        return ()
    kept, others = set[str](), [stage.body for stage in kernel.stages[:-1]]
    rest = [output.body]
    while rest:
        node = rest.pop()
        if isinstance(node, Select):
            rest += node.then, node.otherwise
            others.append(node.condition)
        elif isinstance(node, Load) and _is_own(node, output):
            kept.add(node.buffer)
        else:
            others.append(node)
    kept -= {load.buffer for expr in others for load in loads(expr)}
    return tuple(
        number
        for number, buffer in enumerate(kernel.inputs)
        if buffer.name in kept and (buffer.dtype, buffer.shape) == (output.dtype, output.shape)
    )


def _is_own(load: Load, output: Stage) -> bool:
    """Whether a load is of the element that is written."""
    return len(load.indices) == len(output.axes) and all(
        given == index(axis.name) or (axis.extent == 1 and given == integer(0))
        for given, axis in zip(load.indices, output.axes, strict=True)
    )


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
