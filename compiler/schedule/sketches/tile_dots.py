"""Which reduce axis of a register tile dot products run along, where factors are narrow.

    for k.o: for columns, vectors:  registers += dot over k.i of weights[k.o, :, k.i], data[k.i]

n adjacent values of what all lanes share are one 32-bit word, which is broadcast; constants are
packed so that the n values of each lane are adjacent. Other operands along vectors are rearranged
in registers, from one load where n values of all lanes lie close to each other.
"""

from __future__ import annotations

import math
from itertools import product

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Expr, Load, Select, binary, index, integer
from tunefarm.compiler.expr.packed_fields import wide_byte
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

_BYTES = (DType.U8, DType.I8)
_TERMS = {(DType.I32, frozenset(pair)): 4 for pair in product(_BYTES, _BYTES)} | {
    (DType.I32, frozenset((DType.I16,))): 2,
    (DType.F32, frozenset((DType.BF16,))): 2,
}
"""How many products a dot adds, by the type of the sum and those of the factors."""
MOST_BYTES = 128  # from the first to the last value that the lanes of a vector read in one dot
JOINED = 0.25  # of a dot product more for each value of a word that lies elsewhere


@frozen
class DotAxis:
    """The reduce axis that dot products of `terms` factors run along."""

    axis: str
    terms: int

    def steps(self, extent: int) -> int:
        """Dot products for so many terms of the sum."""
        return -(-extent // self.terms)


def float_products(target: Target) -> tuple[str, ...]:
    """How products of bf16 may be summed up, the preferred first.

    `dot`: by the target's instruction. `widened`: factors are converted, and each is multiplied and
    added in f32. Intel's vdpbf16ps takes four times as long as a multiply-add of f32, AMD's as long
    as one.
    """
    known = target.dot_products(DType.BF16, DType.BF16, DType.F32)
    if all(instruction.matrix for instruction in known):
        return ("widened",)
    slow = target.triple.startswith("x86_64") and not target.cpu.startswith("znver")
    return ("widened", "dot") if slow else ("dot", "widened")


def dot_axis(kernel: FusedKernel, vector: str, lanes: int) -> DotAxis | None:
    """The reduce axis along which the fewest dot products make the anchor's sum.

    None where the factors are not narrow, or where no axis has a use for dot products.
    """
    anchor = kernel.stage(kernel.anchor)
    terms, factors = dot_terms(anchor), narrow_factors(anchor.body)
    if terms < 2 or factors is None:
        return None
    read = [load for factor in factors for load in _loads_of(factor)]
    total = math.prod(axis.extent for axis in anchor.reduce_axes)
    best, least = None, float(total)
    for axis in anchor.reduce_axes:
        costs = [_cost(kernel, anchor, load, axis.name, vector, lanes, terms) for load in read]
        found = DotAxis(axis.name, terms)
        dots = total // axis.extent * found.steps(axis.extent) * max(costs)
        if dots < least:
            best, least = found, dots
    return best


def dot_terms(stage: Stage) -> int:
    """Products that a dot product adds to a sum of the stage, 1 if it has no use for any."""
    factors = narrow_factors(stage.body) if stage.combiner == "sum" else None
    if factors is None or stage.accumulator is not None:
        return 1
    return _TERMS.get((stage.dtype, frozenset(factor.dtype for factor in factors)), 1)


def joined_loads(kernel: FusedKernel, dot: DotAxis, vector: str, lanes: int) -> list[Load]:
    """What the anchor reads along vectors in words whose values lie apart: they are interleaved."""
    anchor = kernel.stage(kernel.anchor)
    return [
        load
        for factor in narrow_factors(anchor.body) or ()
        for load in _loads_of(factor)
        if any(vector in axes_of(item) for item in load.indices)
        and _cost(kernel, anchor, load, dot.axis, vector, lanes, dot.terms) > 1.0
    ]


def _loads_of(factor: Expr) -> list[Load]:
    if isinstance(factor, Select):
        return [*_loads_of(factor.then), *_loads_of(factor.otherwise)]
    factor = wide_byte(factor) or factor
    return [factor] if isinstance(factor, Load) else []


def _cost(
    kernel: FusedKernel,
    anchor: Stage,
    load: Load,
    axis: str,
    vector: str,
    lanes: int,
    terms: int,
) -> float:
    """Dot products that a dot product along the axis costs, for how it reads this operand."""
    along = [number for number, item in enumerate(load.indices) if axis in axes_of(item)]
    if not along:
        return float(terms)
    parts = [binary(op, index(axis), integer(terms)) for op in ("floordiv", "mod")]
    if [load.indices[number] for number in along] == parts and load.indices[-1] == parts[-1]:
        return 1.0  # packed so by a copy
    if len(along) > 1 or affine(load.indices[along[0]], {}).coefficient(axis) < 1:
        return math.inf
    step = affine(load.indices[along[0]], {}).coefficient(axis)
    moving = [number for number, item in enumerate(load.indices) if vector in axes_of(item)]
    constant = any(buffer.name == load.buffer and buffer.constant for buffer in kernel.inputs)
    if constant and step == 1:
        return 1.0 if not moving or moving != along else math.inf
    apart = 1.0 + terms * JOINED
    distance = step * math.prod(_shape(kernel, load.buffer)[along[0] + 1 :])
    if not moving:
        return 1.0 if distance == 1 else apart
    reach = (lanes + (terms - 1) * distance) * load.dtype.bytes
    return 1.0 if reach <= MOST_BYTES else apart


def _shape(kernel: FusedKernel, name: str) -> tuple[int, ...]:
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    return (shapes | {stage.name: stage.shape for stage in kernel.stages})[name]
