"""Pass: sums over a dynamic axis end at its size where the terms behind it are 0.

    sum over k of p[i, k] * v[k, j]   ->   sum over k of select(k < sizes[n], p[i, k] * v[k, j], 0)
    sum over k of p[i, k]             ->   sum over k of select(k < sizes[n], p[i, k], 0)

A term is 0 behind the size where a factor is (`Graph.zeros`); with the condition in the sum no
kernel reads its padding any more, so the kernels that make the factors neither compute nor fill it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from tunefarm.compiler.expr.nodes import Binary, Expr, Load, binary, const, index, integer, select
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import Call, KernelCall, KernelProgram
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.plan.sizes.size_names import (
    SizeName,
    first_known,
    names_by_size,
    size_names,
    with_kernel,
    with_operands,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import PaddedShape, extent_of
from tunefarm.compiler.types.signature import Signature
from tunefarm.compiler.types.sizes import Dimension, Size


def end_sums(program: KernelProgram, graph: Graph) -> KernelProgram:
    """The program of a graph, whose sums end so."""
    zeros, names = graph.zeros, names_by_size(size_names(program, graph))
    if not zeros or not names:
        return program
    same = _same_sizes(graph.signature)
    made = first_known(program)
    calls: list[Call] = []
    for number, call in enumerate(program.calls):
        if isinstance(call, KernelCall):
            known = {size: name for size, name in names.items() if made[name[0]] < number}
            call = _ended(program, call, same, zeros, known)
        calls.append(call)
    return replace(program, calls=tuple(calls))


def _ended(
    program: KernelProgram,
    call: KernelCall,
    same: AbstractSet[tuple[Dimension, Dimension]],
    zeros: Mapping[str, PaddedShape],
    names: Mapping[Size, SizeName],
) -> KernelCall:
    kernel = call.kernel
    ends = {stage.name: _ends(program, call, stage, zeros, same) for stage in kernel.stages}
    sizes = [end.size for found in ends.values() for end in found]
    if not sizes or not all(size in names for size in sizes):
        return call
    call, named = with_operands(call, (names[size][0] for size in sizes), program.types)
    stages = []
    for stage in kernel.stages:
        body = stage.body
        for end in ends[stage.name]:
            vector, place = names[end.size]
            size = Load(DType.I64, named[vector], (integer(place),))
            body = select(binary("lt", end.place, size), body, const(0, body.dtype))
        stages.append(replace(stage, body=body))
    return with_kernel(call, replace(call.kernel, stages=tuple(stages)))


@dataclass(frozen=True, slots=True)
class _End:
    """Where an axis ends: rows of `inner` elements each, of which only so many are there."""

    axis: str
    inner: int
    size: Size

    @property
    def place(self) -> Expr:
        """What is less than the size where there is something."""
        position = index(self.axis)
        return position if self.inner == 1 else binary("floordiv", position, integer(self.inner))


def _ends(
    program: KernelProgram,
    call: KernelCall,
    stage: Stage,
    zeros: Mapping[str, PaddedShape],
    same: AbstractSet[tuple[Dimension, Dimension]],
) -> list[_End]:
    """Where axes end that a stage sums along: behind that what it adds, or each factor, is 0.

    Where the factors name it otherwise both sizes are there: who makes a factor knows its own.
    Narrow factors, which are summed by dot products of several, stay as they are: filled.
    """
    names = {axis.name for axis in stage.reduce_axes}
    match stage.body:
        case Load() as load if stage.combiner == "sum":
            return [
                end
                for axis, end in _zero_behind(program, call, load, zeros).items()
                if axis in names
            ]
        case Binary(op="mul", left=Load() as left, right=Load() as right) if (
            stage.combiner == "sum" and left.dtype is right.dtype is DType.F32
        ):
            first = _zero_behind(program, call, left, zeros)
            second = _zero_behind(program, call, right, zeros)
            return [
                end
                for axis, own in first.items()
                if axis in names
                and (other := second.get(axis)) is not None
                and own.inner == other.inner
                and (other.size == own.size or (own.size, other.size) in same)
                for end in dict.fromkeys((own, other))
            ]
    return []


def _same_sizes(signature: Signature) -> set[tuple[Dimension, Dimension]]:
    """Pairs of sizes that must be equal: of a product, or every run is refused."""
    pairs = [(item.left, item.right) for item in signature.equalities]
    return {*pairs, *((right, left) for left, right in pairs)}


def _zero_behind(
    program: KernelProgram, call: KernelCall, load: Load, zeros: Mapping[str, PaddedShape]
) -> dict[str, _End]:
    """By variable the end behind which a load gives 0; of planes in a row that of their rows."""
    names = {item.name: value for item, value in zip(call.kernel.inputs, call.inputs, strict=True)}
    value = names.get(load.buffer)
    dims = () if value is None else zeros.get(value, ())
    if value is None or tuple(map(extent_of, dims)) != program.types[value].shape:
        return {}
    found: dict[str, _End] = {}
    for axis, item in zip(dims, load.indices, strict=True):
        (size, _), *others = axis
        inner = extent_of(tuple(others))
        for name in axes_of(item):
            if isinstance(size, Size) and item == index(name) and name not in found:
                found[name] = _End(name, inner, size)
    return found
