"""Passes over constants: nodes whose inputs are all constant are evaluated, unless what they make
floats is narrower as it is."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import MappingProxyType

import numpy as np

from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, consumers, use_counts
from tunefarm.compiler.kernels.count_work import kernel_iterations
from tunefarm.compiler.limits import MAXIMUM_RANK, ResourceBudget
from tunefarm.compiler.operators.evaluate_node import evaluate_as_run, evaluate_node, node_kernel
from tunefarm.compiler.operators.registry import (
    MEMORY,
    Pattern,
    Positions,
    operator,
    positions_of,
)
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import FLUSH, Denormals
from tunefarm.compiler.types.tensor_type import Array

# A result that is larger than all its inputs together (expand, tile, pad, a broadcast) is only
# folded up to this size: beyond it, computing it at run time is cheaper than storing it. Weights
# that waited (`folds_late`), and those whose elements are widened, are folded at any size for
# readers that have no other way than to compute all of them in every run: elements are looked up,
# and pointwise readers widen their own.
GROWTH_LIMIT_BYTES = 1 << 20
# Nor is one folded that takes more steps than this to compute; NumPy makes 10^7 to 10^9 a second.
WORK_LIMIT = 1 << 31


def early(
    graph: Graph, allowance: ResourceBudget | None = None, *, denormals: Denormals = FLUSH
) -> Graph:
    """The same as `run`, but for operators that stay until passes have read them (`folds_late`)."""
    return run(graph, allowance, late=False, denormals=denormals)


def run(
    graph: Graph,
    allowance: ResourceBudget | None = None,
    late: bool = True,
    *,
    denormals: Denormals = FLUSH,
) -> Graph:
    """The graph with constant nodes replaced by constants of the same name.

    A node stays when its result exceeds both `GROWTH_LIMIT_BYTES` and the bytes of its inputs (each
    counted once; weights that waited or are widened may), when it takes more than `WORK_LIMIT`
    steps, and where the constants would exceed the allowed bytes. What no node reads any more is
    let go. `denormals` become what they would become in a run. Raises `LimitError` when the time is
    over.
    """
    allowance = allowance or ResourceBudget()
    rewriter = Rewriter(graph)
    uses, readers = use_counts(graph), consumers(graph)
    free = allowance.limits.bytes - sum(array.nbytes for array in graph.constants.values())
    for node in graph.nodes:
        size = rewriter.types[node.output].bytes
        waits = not late and operator(node.operator).folds_late
        grows = operator(node.operator).folds_late or (late and _widens(rewriter, node))
        whole = grows and any(map(_needs_all, readers.get(node.output, ())))
        if waits or not _foldable(rewriter, node, whole) or size > free:
            rewriter.keep(node)
            continue
        allowance.check_time(f"folding node {node.source!r}")
        inputs = tuple(rewriter.constants[name] if name else None for name in node.inputs)
        rewriter.replace_by_constant(node, evaluate_as_run(node, inputs, denormals))
        free -= size
        for name in filter(None, node.inputs):
            uses[name] -= 1
            if not uses[name] and name not in graph.constants:
                free += rewriter.constants.pop(name).nbytes
    return rewriter.finish()


def _widens(rewriter: Rewriter, node: Node) -> bool:
    """Whether a result is larger than its inputs only since its elements are."""
    elements = [prod(rewriter.types[name].shape) for name in node.inputs if name]
    pointwise = operator(node.operator).pattern is Pattern.ELEMENTWISE
    return pointwise and prod(rewriter.types[node.output].shape) <= max(elements, default=0)


def _needs_all(reader: Node) -> bool:
    """Whether a node's kernel does not compute the elements that it reads for itself."""
    pointwise = operator(reader.operator).pattern is Pattern.ELEMENTWISE
    return not pointwise and positions_of(reader) is not Positions.LOOKED_UP


def _foldable(rewriter: Rewriter, node: Node, grows: bool) -> bool:
    """Whether it is constant and worth its size, or `grows` to whatever size."""
    if operator(node.operator).pattern in (Pattern.FUNCTION, Pattern.LOOP):
        return False  # not ours to run while building, or more than this node
    given = [name for name in node.inputs if name]
    if not given or any(name not in rewriter.constants for name in given):
        return False
    input_bytes = sum(rewriter.types[name].bytes for name in set(given))
    limit = max(GROWTH_LIMIT_BYTES, input_bytes)
    if rewriter.types[node.output].bytes > limit and not grows:
        return False
    if operator(node.operator).pattern in MEMORY:
        return True
    kernel = node_kernel(
        node, tuple(rewriter.types[name] if name else None for name in node.inputs)
    )
    axes = max(len(stage.axes) + len(stage.reduce_axes) for stage in kernel.stages)
    return axes <= MAXIMUM_RANK and kernel_iterations(kernel) <= WORK_LIMIT


# Pass: constant integers that casts and products make floats are dequantised by one operator.
#
#     mul(cast(q), scale)                   ->  dequantize(q, scale)
#     mul(sub(cast(q), zero point), scale)  ->  dequantize(q, scale, zero point)
#
# Models that say it in either way then have their weights as narrow as they are stored. Scales and
# zero points may be computed from constants; integers may be widened on the way. What is equal to a
# dequantize only up to rounding, as a division by the scale, stays.


LEAST_INTEGERS = 1 << 14
"""Fewer of them are folded to floats, which stay in the first cache, too."""
_EXACT = frozenset((DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I16))
"""Types that have integers of 8 bits and, but for a rounding at the end, their differences."""
_MAXIMUM_DEPTH = 8
"""Nodes in a row that a scale or zero point is computed by."""


def dequantise(graph: Graph) -> Graph:
    """The graph with a dequantize for each product of a scale with constant integers."""
    rewriter = Rewriter(graph)
    found = False
    for node in graph.nodes:
        resolved = rewriter.resolve(node)
        taken = _dequantize(rewriter, resolved) if node.operator == "mul" else None
        found |= taken is not None
        rewriter.keep(taken or resolved)
    return dead_code.run(rewriter.finish()) if found else graph


@frozen
class _Integers:
    """A constant, and what is subtracted from all its elements before they are scaled."""

    name: str
    zero_point: Array | None = None


def _dequantize(rewriter: Rewriter, node: Node) -> Node | None:
    """The node instead of a product of integers, less their zero point, with a scale."""
    result = rewriter.types[node.output]
    for data, factor in (node.inputs, node.inputs[::-1]):
        integers = _integers(rewriter, data)
        if integers is None or not rewriter.types[data].dtype.is_float:
            continue
        stored = rewriter.constants[integers.name]
        scale = _value(rewriter, factor)
        if stored.shape != result.shape or scale is None or not np.isfinite(scale).all():
            return None
        parameters = [scale]
        if integers.zero_point is not None:
            zero_point = _exactly(integers.zero_point, DType.from_numpy(stored.dtype))
            if zero_point is None:
                return None
            parameters.append(zero_point)
        hints = ("scale", "zero_point")
        names = [
            rewriter.constant(array, f"{node.output}_{hint}")
            for array, hint in zip(parameters, hints, strict=False)
        ]
        attributes = MappingProxyType({"to": str(result.dtype)})
        inputs = (integers.name, *names)
        return replace(node, operator="dequantize", inputs=inputs, attributes=attributes)
    return None


def _integers(rewriter: Rewriter, name: str) -> _Integers | None:
    """The large constant of at most 8 bits behind casts, and a subtraction between them."""
    constant = rewriter.constants.get(name)
    if constant is not None:
        dtype = DType.from_numpy(constant.dtype)
        narrow = dtype.is_integer and dtype.bits <= DType.U8.bits
        return _Integers(name) if narrow and constant.size >= LEAST_INTEGERS else None
    node = rewriter.producers.get(name)
    if node is None or node.operator not in ("cast", "sub"):
        return None
    inside = _integers(rewriter, node.inputs[0])
    if inside is None or rewriter.types[name].dtype not in _EXACT:
        return None
    if node.operator == "cast":
        return inside
    zero_point = _value(rewriter, node.inputs[1])
    if inside.zero_point is not None or zero_point is None:
        return None
    return replace(inside, zero_point=zero_point)


def _value(rewriter: Rewriter, name: str, depth: int = _MAXIMUM_DEPTH) -> Array | None:
    """A constant, or what a few nodes make of constants; None where it is neither."""
    if name in rewriter.constants:
        return rewriter.constants[name]
    node = rewriter.producers.get(name)
    if node is None or not depth or not all(node.inputs):
        return None
    if operator(node.operator).pattern in (Pattern.FUNCTION, Pattern.LOOP):
        return None
    inputs = [_value(rewriter, item, depth - 1) for item in node.inputs]
    present = [array for array in inputs if array is not None]
    return evaluate_node(node, tuple(present)) if len(present) == len(inputs) else None


def _exactly(zero_point: Array, dtype: DType) -> Array | None:
    """The zero point as integers of this type; None where it is others."""
    numbers = zero_point.astype(np.float64)
    low, high = dtype.limits
    if not ((numbers == np.round(numbers)) & (numbers >= low) & (numbers <= high)).all():
        return None
    return converted(numbers.astype(np.int64), dtype)
