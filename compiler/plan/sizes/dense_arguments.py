"""Pass: kernels read arguments where their callers have them.

    fill = select(i3 < w, select(i2 < h, x[i0, i1, i2, i3], 0), 0)
      ->   x lies dense at run time: image i0 begins at i0 * 3 * h * w, and row i2 at i2 * w

An argument of dynamic shape is dense at its true sizes, and what reads it as if it lay at its
bounds has its rows copied there first. Kernels that only move and compute elements need no copy.
Nothing lies behind the last element: what they read stands under conditions that it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tunefarm.compiler.expr.nodes import Binary, Expr, Load, Select, all_of, const, integer, select
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import loads, transform
from tunefarm.compiler.kernels.kept_inputs import inputs_kept
from tunefarm.compiler.kernels.kernel import (
    Buffer,
    Call,
    DensePitch,
    FusedKernel,
    KernelCall,
    KernelProgram,
    ViewCall,
    reads_of,
)
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import SIZES, Signature, SizedPort

LEAST_BYTES: Final = 4096
"""Of an argument at its bounds: fewer are copied sooner than conditions are tested."""


def dense_arguments(program: KernelProgram, signature: Signature | None) -> KernelProgram:
    """The program whose kernels read dynamic arguments dense, where all of an argument's can."""
    if signature is None or SIZES not in program.types:
        return program
    pitches = {
        port.name: pitch
        for port in signature.inputs
        if (pitch := _pitch(port, signature)) and _reads_elements(port.name, program)
    }
    return replace(program, calls=tuple(_reading(call, pitches, program) for call in program.calls))


def dense_inputs(program: KernelProgram) -> frozenset[str]:
    """The inputs of a program that its kernels read as they lie."""
    return frozenset(
        name
        for call in program.calls
        if isinstance(call, KernelCall)
        for name, buffer in zip(call.inputs, call.kernel.inputs, strict=True)
        if isinstance(buffer.pitch, DensePitch)
    )


def _pitch(port: SizedPort, signature: Signature) -> DensePitch | None:
    """How a port's elements lie, by the numbers of its sizes; None if it is copied."""
    grows = any(
        output.type == port.type and output.shape != port.shape for output in signature.outputs
    )  # a result of the last call, which lies in a place
    if grows or any(len(axis) != 1 for axis in port.padded) or port.type.bytes < LEAST_BYTES:
        return None
    numbers: list[int | None] = []
    for ((true, extent),) in port.padded:
        if true != extent and true not in signature.sizes:
            return None
        numbers.append(None if true == extent else signature.sizes.index(true))
    if all(number is None for number in numbers[1:]):
        return None  # it lies as at the beginning of its place
    return DensePitch(port.type.shape, "", tuple(numbers))


def _reads_elements(name: str, program: KernelProgram) -> bool:
    """Whether all that reads a value is kernels that take its elements, each for one of theirs."""
    if name in program.outputs:
        return False
    readers = [call for call in program.calls if name in reads_of(call)]
    return bool(readers) and all(_takes_elements(call, name, program) for call in readers)


def _takes_elements(call: Call, name: str, program: KernelProgram) -> bool:
    if not isinstance(call, KernelCall) or call.inputs.count(name) > 1:
        return False
    position, kernel = call.inputs.index(name), call.kernel
    buffer = kernel.inputs[position]
    extends = position in inputs_kept(kernel) and call.output in _returned(program)
    if extends or buffer.shape != program.types[name].shape:
        return False
    sums = (stage for stage in kernel.stages if stage.reduce_axes or stage.combiner)
    return all(load.buffer != buffer.name for stage in sums for load in loads(stage.body))


def _returned(program: KernelProgram) -> set[str]:
    """The outputs, and what they are views of: a cache that is returned may lie over the last."""
    found = {*program.outputs}
    for call in reversed(program.calls):
        if isinstance(call, ViewCall) and call.output in found:
            found.add(call.input)
    return found


def _reading(call: Call, pitches: Mapping[str, DensePitch], program: KernelProgram) -> Call:
    """The call, of a kernel that reads those arguments as they lie."""
    if not isinstance(call, KernelCall) or pitches.keys().isdisjoint(call.inputs):
        return call
    kernel, inputs, buffers = call.kernel, list(call.inputs), list(call.kernel.inputs)
    if SIZES not in inputs:
        type = program.types[SIZES]
        inputs.append(SIZES)
        buffers.append(Buffer(f"in{len(buffers)}", type.dtype, type.shape))
    sizes = buffers[inputs.index(SIZES)].name
    buffers = [
        replace(buffer, pitch=replace(pitches[name], sizes=sizes)) if name in pitches else buffer
        for name, buffer in zip(inputs, buffers, strict=True)
    ]
    kernel = _guarded(replace(kernel, inputs=tuple(buffers)))
    return replace(call, kernel=kernel, key=workload_key(kernel), inputs=tuple(inputs))


def _guarded(kernel: FusedKernel) -> FusedKernel:
    """The kernel, which reads of dense inputs what is there, and 0 instead of the rest."""
    pitches = {
        buffer.name: buffer.pitch
        for buffer in kernel.inputs
        if isinstance(buffer.pitch, DensePitch)
    }

    def under(body: Expr, known: frozenset[Expr]) -> Expr:
        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Select):
                holds = known.union(conjuncts(node.condition))
                parts = under(node.condition, known), under(node.then, holds)
                return select(*parts, under(node.otherwise, known))
            if isinstance(node, Load) and node.buffer in pitches:
                conditions = _conditions(node, pitches[node.buffer])
                missing = [condition for condition in conditions if condition not in known]
                return select(all_of(*missing), node, const(0, node.dtype)) if missing else node
            return None

        return transform(body, visit)

    stages = tuple(replace(stage, body=under(stage.body, frozenset())) for stage in kernel.stages)
    return replace(kernel, stages=stages)


def _conditions(load: Load, pitch: DensePitch) -> Iterator[Expr]:
    """That an element is there, axis by axis."""
    for place, number in zip(load.indices, pitch.numbers, strict=True):
        if number is not None:
            size = Load(DType.I64, pitch.sizes, (integer(number),))
            yield Binary(DType.BOOL, "lt", place, size)
