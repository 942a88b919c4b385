"""What a model does step by step, as a graph: for each kernel what it gives, and how that lies.

conv0 = conv_relu(x)          NCHW16c
pool1 = max_pool(conv0)       NCHW16c, reads step 0
y = mean(pool1)               plain, reads step 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.compiler.kernels.kernel import (
    FunctionCall,
    KernelCall,
    KernelProgram,
    reads_of,
    written_by,
)
from tunefarm.compiler.plan.decisions.plan_names import is_blocked, plain_name
from tunefarm.compiler.types.tensor_type import TensorType

PLAIN_LAYOUT = "plain"
CHANNELS_LAST = "NHWC"


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """A call of a kernel or a function: its name, and its key as steps of executables have it.

    `value` is what it gives, by its name in the graph before layouts, `layout` is "plain", "NHWC"
    or as "NCHW16c", and `reads` are the numbers of the steps whose results it reads.
    """

    name: str
    key: str
    value: str
    operators: tuple[str, ...]
    layout: str
    reads: tuple[int, ...]


def program_steps(program: KernelProgram) -> tuple[ProgramStep, ...]:
    """The calls of a program that run code, in their order."""
    writers: dict[str, frozenset[int]] = {}
    layouts = _layouts(program.types)
    steps: list[ProgramStep] = []
    for call in program.calls:
        sources = [name for name in reads_of(call) if name]
        read = frozenset[int]().union(*(writers.get(name, frozenset()) for name in sources))
        if isinstance(call, KernelCall | FunctionCall):
            steps.append(_step(call, layouts, tuple(sorted(read))))
            read = frozenset({len(steps) - 1})
        writers |= dict.fromkeys(written_by(call), read)
    return tuple(steps)


def _step(
    call: KernelCall | FunctionCall, layouts: Mapping[str, str], reads: tuple[int, ...]
) -> ProgramStep:
    if isinstance(call, KernelCall):
        name, key, operators = call.kernel.name, call.key, call.operators
    else:
        name, key, operators = call.name, call.name, (call.name,)
    layout = layouts.get(call.output, PLAIN_LAYOUT)
    return ProgramStep(name, key, plain_name(call.output), operators, layout, reads)


def _layouts(types: Mapping[str, TensorType]) -> dict[str, str]:
    """The values that do not lie plain. A block of all channels is NHWC, unless others of their
    blocks are several: then it is one of these."""
    shapes = {
        name: type.shape
        for name, type in types.items()
        if len(type.shape) == 5 and is_blocked(name)
    }
    several = {shape[4] for shape in shapes.values() if shape[1] > 1}
    return {
        name: f"NCHW{shape[4]}c" if shape[4] in several else CHANNELS_LAST
        for name, shape in shapes.items()
    }
