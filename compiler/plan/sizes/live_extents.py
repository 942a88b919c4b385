"""Pass: limits on the kernels of a model with dynamic shapes.

`needed_extents` finds how far results are needed; what is left over gets no limit, and is computed
up to its bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import (
    Buffer,
    Call,
    JoinCall,
    KernelCall,
    KernelProgram,
    ValidExtent,
    ViewCall,
    reads_of,
    written_by,
)
from tunefarm.compiler.kernels.split_rows import split_folds, split_rows
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.plan.sizes.needed_extents import NOTHING, ValueLimit, needed_extents
from tunefarm.compiler.plan.sizes.size_names import NONE_COMPUTED
from tunefarm.compiler.types.dims import Dims
from tunefarm.compiler.types.signature import Signature
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.tensor_type import TensorType


def limit_kernels(
    program: KernelProgram,
    outputs: Sequence[str],
    signature: Signature,
    unread: Mapping[str, Dims] = NOTHING,
    computed: Mapping[str, Dimension] = NONE_COMPUTED,
) -> KernelProgram:
    """The program with limits on its kernels, which get the sizes as an operand.

    `outputs` are the names of the program's outputs in the signature, `unread` are the axes of
    values whose padding nobody reads, `computed` the sizes that outputs hold.
    """
    needs = needed_extents(program, outputs, signature, unread, computed)
    calls: list[Call] = []
    types = dict(program.types)
    for call in program.calls:
        if isinstance(call, KernelCall):
            limits = sorted(needs.get(call.output, ()))
            calls += _in_views(types, _limited(program, call, limits))
        else:
            calls.append(call)
    return replace(program, calls=tuple(calls), types=types)


def without_outputs(program: KernelProgram, dropped: Sequence[bool]) -> KernelProgram:
    """The program without some of its outputs, and without the kernels that made only those."""
    if not any(dropped):
        return program
    pairs = zip(program.outputs, dropped, strict=True)
    outputs = tuple(name for name, is_dropped in pairs if not is_dropped)
    needed, calls = set(outputs), list[Call]()
    for call in reversed(program.calls):
        made = isinstance(call, KernelCall | ViewCall | JoinCall)
        if made and needed.isdisjoint(written_by(call)):
            continue
        calls.append(call)
        needed.update((*reads_of(call), *written_by(call)))
        needed.update(guard.value for guard in getattr(call, "guards", ()))
    needed.update(program.inputs)
    return replace(
        program,
        outputs=outputs,
        calls=tuple(reversed(calls)),
        types={name: type for name, type in program.types.items() if name in needed},
        constants={name: array for name, array in program.constants.items() if name in needed},
    )


def without_computed_sizes(graph: Graph) -> Graph:
    """The graph without the outputs that only tell kernels of sizes."""
    if not graph.computed_sizes:
        return graph
    outputs = tuple(name for name in graph.outputs if name not in graph.computed_sizes)
    return replace(graph, outputs=outputs, computed_sizes={})


def _limited(program: KernelProgram, call: KernelCall, limits: Sequence[ValueLimit]) -> KernelCall:
    """The call of the kernel with these limits."""
    if not limits:
        kernel = split_folds(call.kernel)
        unchanged = kernel is call.kernel
        return call if unchanged else replace(call, kernel=kernel, key=workload_key(kernel))
    inputs, buffers = list(call.inputs), list(call.kernel.inputs)
    for name in dict.fromkeys(limit.sizes for limit in limits):
        if name not in inputs:
            type = program.types[name]
            inputs.append(name)
            buffers.append(Buffer(f"in{len(buffers)}", type.dtype, type.shape))
    named = {value: buffer.name for value, buffer in zip(inputs, buffers, strict=True)}
    kernel = replace(
        call.kernel,
        inputs=tuple(buffers),
        limits=tuple(
            ValidExtent(limit.stride, limit.extent, named[limit.sizes], limit.number, limit.offset)
            for limit in limits
        ),
    )
    joined = {name for item in program.calls if isinstance(item, JoinCall) for name in item.inputs}
    kernel = split_folds(kernel)
    if call.output not in joined:
        kernel = split_rows(kernel)
    return replace(call, kernel=kernel, key=workload_key(kernel), inputs=tuple(inputs))


def _in_views(types: dict[str, TensorType], call: KernelCall) -> list[Call]:
    """The call with views of its operands and of its result, where the kernel has others."""
    before: list[Call] = []
    inputs = []
    for name, buffer in zip(call.inputs, call.kernel.inputs, strict=True):
        if types[name] != buffer.type:
            view = _fresh(types, name, buffer.type)
            before.append(ViewCall(name, view))
            name = view
        inputs.append(name)
    made = TensorType(call.kernel.output.dtype, call.kernel.output.shape)
    if types[call.output] == made:
        return [*before, replace(call, inputs=tuple(inputs))]
    result = _fresh(types, call.output, made)
    made_call = replace(call, inputs=tuple(inputs), output=result)
    return [*before, made_call, ViewCall(result, call.output)]


def _fresh(types: dict[str, TensorType], hint: str, type: TensorType) -> str:
    """A new value of this type."""
    name, count = f"{hint}_rows", 0
    while name in types:
        count += 1
        name = f"{hint}_rows_{count}"
    types[name] = type
    return name
