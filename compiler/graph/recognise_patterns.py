"""Pass: operators in the place of patterns that models spell out (compiler/graph/patterns).

A pattern is found from its last node backwards, the last of a graph first, so that the largest one
wins: a normalisation with its scale and bias before that without. What it computes on the way must
be needed by nothing else.
"""

from __future__ import annotations

from compiler.graph import dead_code
from compiler.graph.ir import Graph
from compiler.graph.patterns import (
    activations,
    casts,
    depth_space,
    folded_layer_norm,
    group_norm,
    normalisations,
    rotary,
    softmax,
)
from compiler.graph.patterns.finder import Finder, Match, MatchRule
from compiler.graph.rewriter import Rewriter
from compiler.types.numerics import is_narrow

PATTERNS: tuple[MatchRule, ...] = (
    folded_layer_norm.match,
    normalisations.match,
    group_norm.match,
    softmax.match,
    rotary.match,
    depth_space.match,
    activations.match,
    casts.match,
)


def run(graph: Graph, rounds_each: bool = False) -> Graph:
    """The graph with one operator for each pattern.

    Where every operator rounds its result (`rounds_each`) those in 16-bit floats stay spelled out.
    """
    matches = _matches(graph, rounds_each)
    if not matches:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        match = matches.get(node.output)
        if match is None:
            rewriter.keep(node)
        else:
            match.emit(rewriter)
    return dead_code.run(rewriter.finish())


def _matches(graph: Graph, rounds_each: bool) -> dict[str, Match]:
    """The matches by their last value; none takes in a value of another one."""
    finder = Finder(graph)
    found: dict[str, Match] = {}
    taken: set[str] = set()
    for node in reversed(graph.nodes):
        if node.output in taken or (rounds_each and is_narrow(finder.dtype(node.output))):
            continue
        for rule in PATTERNS:
            match = rule(finder, node)
            inside = finder.inside(match) if match is not None else None
            if match is not None and inside is not None and not inside & taken:
                found[node.output] = match
                taken |= inside
                break
    return found
