"""Inputs that a kernel's result may be written over: caches that a step extends.

    present[i] = select(i < past length, past[i], new[i - past length])

Each element of such an input is read where it is written, and stays what it is or becomes what
does not depend on it. So both may be one memory: an element that is computed twice, by overlapping
tiles or by two threads, is the same both times.
"""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Load, Select, index, integer
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage


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
