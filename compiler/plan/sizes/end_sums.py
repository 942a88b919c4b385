"""Pass: sums of products end where both factors are 0 behind a size that is known at run time.

    sum over k of p[i, k] * v[k, j]   ->   sum over k of select(k < sizes[n], p[i, k] * v[k, j], 0)

So nobody reads what is behind the size any more: who makes a factor computes no padding, and fills
none. `Graph.zeros` says what is 0; where it holds something else by now, the model meant 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from compiler.expr.nodes import Binary, Load, binary, const, index, integer, select
from compiler.expr.walk import axes_of
from compiler.kernels.kernel import Buffer, KernelCall, KernelProgram
from compiler.kernels.stage import Stage
from compiler.kernels.workload_key import workload_key
from compiler.types.dims import Dims, extent_of, is_whole
from compiler.types.dtypes import DType
from compiler.types.signature import SIZES, Signature
from compiler.types.sizes import Dimension, Size


def end_sums(
    program: KernelProgram, signature: Signature, zeros: Mapping[str, Dims]
) -> KernelProgram:
    """The program whose sums end so; `zeros` are the axes of values that are 0 in their padding."""
    if not zeros or SIZES not in program.types:
        return program
    calls = (
        _ended(program, call, signature, zeros) if isinstance(call, KernelCall) else call
        for call in program.calls
    )
    return replace(program, calls=tuple(calls))


def _ended(
    program: KernelProgram, call: KernelCall, signature: Signature, zeros: Mapping[str, Dims]
) -> KernelCall:
    kernel = call.kernel
    anchor = kernel.stage(kernel.anchor)
    found = _ends(program, call, anchor, zeros, _same_sizes(signature))
    if not found or any(size not in signature.sizes for _, size in found):
        return call
    inputs, buffers = call.inputs, kernel.inputs
    if SIZES not in inputs:
        type = program.types[SIZES]
        inputs = (*inputs, SIZES)
        buffers = (*buffers, Buffer(f"in{len(buffers)}", type.dtype, type.shape))
    sizes = buffers[inputs.index(SIZES)].name
    body = anchor.body
    for axis, size in found:
        end = Load(DType.I64, sizes, (integer(signature.sizes.index(size)),))
        body = select(binary("lt", index(axis), end), body, const(0, body.dtype))
    ended = replace(anchor, body=body)
    stages = tuple(ended if stage.name == anchor.name else stage for stage in kernel.stages)
    kernel = replace(kernel, inputs=buffers, stages=stages)
    return replace(call, kernel=kernel, key=workload_key(kernel), inputs=inputs)


def _ends(
    program: KernelProgram,
    call: KernelCall,
    stage: Stage,
    zeros: Mapping[str, Dims],
    same: AbstractSet[tuple[Dimension, Dimension]],
) -> list[tuple[str, Dimension]]:
    """Axes that a stage sums along with sizes behind which both of its factors are 0.

    Where the factors name it otherwise both sizes are there: who makes a factor knows its own.
    Narrow factors, which are summed by dot products of several, stay as they are: filled.
    """
    match stage.body:
        case Binary(op="mul", left=Load() as left, right=Load() as right) if (
            stage.combiner == "sum" and left.dtype is right.dtype is DType.F32
        ):
            first = _zero_behind(program, call, left, zeros)
            second = _zero_behind(program, call, right, zeros)
            names = {axis.name for axis in stage.reduce_axes}
            return [
                (axis, end)
                for axis, size in first.items()
                if axis in names
                and axis in second
                and (second[axis] == size or (size, second[axis]) in same)
                for end in dict.fromkeys((size, second[axis]))
            ]
    return []


def _same_sizes(signature: Signature) -> set[tuple[Dimension, Dimension]]:
    """Pairs of sizes that must be equal: of a product, or every run is refused."""
    pairs = [(item.left, item.right) for item in signature.equalities]
    return {*pairs, *((right, left) for left, right in pairs)}


def _zero_behind(
    program: KernelProgram, call: KernelCall, load: Load, zeros: Mapping[str, Dims]
) -> dict[str, Dimension]:
    """By variable the size behind which a load gives 0."""
    names = {item.name: value for item, value in zip(call.kernel.inputs, call.inputs, strict=True)}
    value = names.get(load.buffer)
    dims = () if value is None else zeros.get(value, ())
    if value is None or tuple(map(extent_of, dims)) != program.types[value].shape:
        return {}
    found: dict[str, Dimension] = {}
    for axis, item in zip(dims, load.indices, strict=True):
        for name in axes_of(item):
            single = len(axis) == 1 and not is_whole(axis) and item == index(name)
            if single and isinstance(axis[0][0], Size) and name not in found:
                found[name] = axis[0][0]
    return found
