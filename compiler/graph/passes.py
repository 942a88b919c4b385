"""The graph's own passes in order, and their runner: verification before the first, after each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeAlias

from tunefarm.compiler.graph import (
    attention,
    common_subexpressions,
    dead_code,
    equal_sizes,
    fold_batch_norm,
    fold_constants,
    infer_types,
    recognise_patterns,
    select_early,
    simplify,
    turned_operands,
)
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import FLUSH, Denormals

GraphPass: TypeAlias = Callable[[Graph, ResourceBudget], Graph]
Observe: TypeAlias = Callable[[str, Graph], None]


def plain(run: Callable[[Graph], Graph]) -> GraphPass:
    """A pass that needs no allowance."""
    return lambda graph, allowance: run(graph)


# Name and pass, in order. A name that ends in a number is a later run of the same pass.
def before_types(denormals: Denormals = FLUSH) -> tuple[tuple[str, GraphPass], ...]:
    """Those before passes that choose the types that are computed in."""
    return (
        ("infer_types", plain(infer_types.run)),
        ("equal_sizes", plain(equal_sizes.run)),
        ("dequantised_constants", plain(fold_constants.dequantise)),
        ("fold_constants", partial(fold_constants.early, denormals=denormals)),
        ("simplify", plain(simplify.run)),
    )


def before_layouts(
    summed: Collection[DType] = (),
    rounds_each: bool = False,
    denormals: Denormals = FLUSH,
    tiled: Collection[DType] = (),
) -> tuple[tuple[str, GraphPass], ...]:
    """Those whose result layouts are chosen for.

    `summed` are the narrow floats whose products the target has instructions to sum, `tiled` those
    that its matrix tiles multiply; `rounds_each` and `denormals` as `Numerics` has them.
    """
    recognised = plain(lambda graph: recognise_patterns.run(graph, rounds_each))
    return (
        ("fold_batch_norm", plain(fold_batch_norm.run)),
        ("fold_constants_2", partial(fold_constants.run, denormals=denormals)),
        ("simplify_2", plain(simplify.run)),
        ("recognise_patterns", recognised),
        ("attention", plain(lambda graph: attention.run(graph, summed, rounds_each, tiled))),
        ("select_early", plain(select_early.run)),
        ("turned_operands", plain(turned_operands.run)),
        ("common_subexpressions", plain(common_subexpressions.run)),
        ("recognise_patterns_2", recognised),
        ("dead_code", plain(dead_code.run)),
    )


def after_layouts(denormals: Denormals = FLUSH) -> tuple[tuple[str, GraphPass], ...]:
    """Those that clean up behind the choice of layouts."""
    return (
        ("simplify_3", plain(simplify.run)),
        ("fold_constants_3", partial(fold_constants.run, denormals=denormals)),
        ("common_subexpressions_2", plain(common_subexpressions.run)),
        ("dead_code_2", plain(dead_code.run)),
    )


def check_graph(graph: Graph, allowance: ResourceBudget) -> None:
    """Raise `LimitError` for more nodes, values of a higher rank, larger constants than allowed."""
    allowance.check_nodes("the model", len(graph.nodes))
    for node in graph.nodes:
        what = f"{node.output!r} of node {node.source!r}"
        allowance.check_rank(what, graph.types[node.output].shape)
    total = sum(array.nbytes for array in graph.constants.values())
    allowance.check_bytes("the constants of the model", total)


def run_passes(
    graph: Graph,
    passes: Iterable[tuple[str, GraphPass]],
    observe: Observe | None,
    allowance: ResourceBudget,
) -> Graph:
    """The graph after all passes, with the same inputs, outputs and meaning.

    `observe` is called with the name and result of every pass. Raises `VerifyError` if the graph,
    or the result of a pass, breaks a rule, and `LimitError` for what goes beyond the `allowance`.
    """
    check_graph(graph, allowance)
    verify_graph(graph)
    for name, run in passes:
        allowance.check_time(f"pass {name}")
        before, graph = graph, run(graph, allowance)
        verify_graph(graph, before)
        if observe is not None:
            observe(name, graph)
    return graph
