"""Where a program has the sizes of its values: in its input `SIZES`, or in what it computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import (
    Buffer,
    FusedKernel,
    KernelCall,
    KernelProgram,
    written_by,
)
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.types.signature import SIZES, ResultSource
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol
from tunefarm.compiler.types.tensor_type import TensorType

SizeName: TypeAlias = tuple[str, int]
"""The value that holds sizes, and the number of one of them."""


def size_names(program: KernelProgram, graph: Graph) -> dict[SizeName, Dimension]:
    """The sizes that vectors of the graph's program hold, by the vector and the place in it."""
    found: dict[SizeName, Dimension] = {
        (SIZES, number): size for number, size in enumerate(graph.signature.sizes)
    }
    values = dict(zip(graph.outputs, program.outputs, strict=True))
    for source in graph.signature.sources:
        if isinstance(source, ResultSource) and source.output in values:
            symbol = source.symbol
            size = Symbol.of(symbol.name, symbol.low, symbol.high)
            found[values[source.output], source.position] = size
    computed = graph.computed_sizes.items()
    found |= {(values[output], 0): size for output, size in computed if output in values}
    return {
        name: size
        for name, size in found.items()
        if name[0] in program.types and len(program.types[name[0]].shape) == 1
    }


def names_by_size(sizes: Mapping[SizeName, Dimension]) -> dict[Size, SizeName]:
    """The first name of each size."""
    found: dict[Size, SizeName] = {}
    for name, size in sizes.items():
        if isinstance(size, Size):
            found.setdefault(size, name)
    return found


def first_known(program: KernelProgram) -> dict[str, int]:
    """By value the number of the call that makes it; -1 for what is there before the first one."""
    made = dict.fromkeys((*program.inputs, *program.constants), -1)
    for number, call in enumerate(program.calls):
        for name in written_by(call):
            made.setdefault(name, number)
    return made


def with_operands(
    call: KernelCall, names: Iterable[str], types: Mapping[str, TensorType]
) -> tuple[KernelCall, dict[str, str]]:
    """The call with these values among its operands, and how its kernel calls each of them."""
    inputs, buffers = list(call.inputs), list(call.kernel.inputs)
    for name in names:
        if name not in inputs:
            inputs.append(name)
            buffers.append(Buffer(f"in{len(buffers)}", types[name].dtype, types[name].shape))
    named = {name: buffers[inputs.index(name)].name for name in inputs}
    kernel = replace(call.kernel, inputs=tuple(buffers))
    return replace(call, kernel=kernel, inputs=tuple(inputs)), named


def with_kernel(call: KernelCall, kernel: FusedKernel) -> KernelCall:
    """The call of another kernel with the same operands."""
    return call if kernel is call.kernel else replace(call, kernel=kernel, key=workload_key(kernel))
