"""Pass: evaluate nodes whose inputs are all constants."""

from __future__ import annotations

from math import prod

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, consumers, use_counts
from tunefarm.compiler.kernels.count_work import kernel_iterations
from tunefarm.compiler.limits import MAXIMUM_RANK, ResourceBudget
from tunefarm.compiler.operators.evaluate_node import evaluate_as_run, node_kernel
from tunefarm.compiler.operators.registry import (
    MEMORY,
    Pattern,
    Positions,
    operator,
    positions_of,
)
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import FLUSH, Denormals

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
