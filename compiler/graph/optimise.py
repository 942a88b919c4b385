"""The graph's passes in order, with verification before the first and after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from compiler.graph import (
    common_subexpressions,
    dead_code,
    fold_batch_norm,
    fold_constants,
    infer_types,
    simplify,
    untranspose_operands,
)
from compiler.graph.ir import Graph
from compiler.graph.verify import verify_graph
from compiler.limits import Allowance
from compiler.plan import choose_layouts

GraphPass: TypeAlias = Callable[[Graph, int | None, Allowance], Graph]


def _plain(run: Callable[[Graph], Graph]) -> GraphPass:
    return lambda graph, block, allowance: run(graph)


def _fold_constants(graph: Graph, block: int | None, allowance: Allowance) -> Graph:
    return fold_constants.run(graph, allowance)


def _choose_layouts(graph: Graph, block: int | None, allowance: Allowance) -> Graph:
    return graph if block is None or block < 2 else choose_layouts.run(graph, block)


# Name and pass, in order. A name that ends in a number is a later run of the same pass.
PASSES: tuple[tuple[str, GraphPass], ...] = (
    ("infer_types", _plain(infer_types.run)),
    ("fold_constants", _fold_constants),
    ("simplify", _plain(simplify.run)),
    ("fold_batch_norm", _plain(fold_batch_norm.run)),
    ("fold_constants_2", _fold_constants),
    ("simplify_2", _plain(simplify.run)),
    ("untranspose_operands", _plain(untranspose_operands.run)),
    ("common_subexpressions", _plain(common_subexpressions.run)),
    ("dead_code", _plain(dead_code.run)),
    ("choose_layouts", _choose_layouts),
    ("simplify_3", _plain(simplify.run)),
    ("fold_constants_3", _fold_constants),
    ("common_subexpressions_2", _plain(common_subexpressions.run)),
    ("dead_code_2", _plain(dead_code.run)),
)


def check_graph(graph: Graph, allowance: Allowance) -> None:
    """Raise `LimitError` for more nodes, larger values or larger constants than allowed."""
    allowance.check_nodes("the model", len(graph.nodes))
    for node in graph.nodes:
        type = graph.types[node.output]
        what = f"{node.output!r} of node {node.source!r}"
        allowance.check_array(what, type.shape, type.dtype.bytes)
    total = sum(array.nbytes for array in graph.constants.values())
    allowance.check_bytes("the constants of the model", total)


def optimise(
    graph: Graph,
    block: int | None,
    observe: Callable[[str, Graph], None] | None = None,
    allowance: Allowance | None = None,
) -> Graph:
    """The graph that kernels are extracted from, with the same inputs, outputs and meaning.

    `block` is the number of f32 lanes of the target, the block of blocked layouts; None keeps all
    data in NCHW. `observe` is called with the name and result of every pass. Raises `VerifyError`
    if the graph, or the result of a pass, breaks a rule, and `LimitError` for what goes beyond the
    `allowance` (this machine's if None).
    """
    allowance = allowance or Allowance()
    check_graph(graph, allowance)
    verify_graph(graph)
    for name, run in PASSES:
        allowance.check_time(f"pass {name}")
        graph = run(graph, block, allowance)
        verify_graph(graph)
        if observe is not None:
            observe(name, graph)
    return graph
