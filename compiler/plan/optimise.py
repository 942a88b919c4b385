"""From a model's graph to the one that kernels are extracted from: its passes and the layouts."""

from __future__ import annotations

from compiler.graph.ir import Graph
from compiler.graph.passes import (
    AFTER_LAYOUTS,
    BEFORE_LAYOUTS,
    GraphPass,
    Observe,
    plain,
    run_passes,
)
from compiler.limits import Allowance
from compiler.plan import choose_layouts, cut_windows, share_memory, transposed_convolutions


def passes(block: int | None) -> tuple[tuple[str, GraphPass], ...]:
    """Name and pass, in order, for a target with vectors of `block` elements."""
    transposed = plain(lambda graph: transposed_convolutions.run(graph, block))
    layouts = plain(lambda graph: choose_layouts.run(graph, block))
    sharing = ("share_memory", plain(share_memory.run))
    planned = (
        ("transposed_convolutions", transposed),
        ("cut_windows", plain(cut_windows.run)),
        ("choose_layouts", layouts),
    )
    return *BEFORE_LAYOUTS, *planned, *AFTER_LAYOUTS, sharing


PASS_NAMES = tuple(name for name, _ in passes(None))


def optimise(
    graph: Graph,
    block: int | None,
    observe: Observe | None = None,
    allowance: Allowance | None = None,
) -> Graph:
    """The graph that kernels are extracted from, with the same inputs, outputs and meaning.

    `block` is the number of f32 lanes of the target, the block of blocked layouts; None keeps all
    data in NCHW. `observe` is called with the name and result of every pass. Raises `VerifyError`
    if the graph, or the result of a pass, breaks a rule, and `LimitError` for what goes beyond the
    `allowance` (this machine's if None).
    """
    return run_passes(graph, passes(block), observe, allowance or Allowance())
