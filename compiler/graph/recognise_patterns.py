"""Pass: operators instead of the decomposed patterns of models (compiler/graph/patterns).

A pattern is found from its last node backwards, the last of a graph first, so that the largest one
wins: a normalisation with its scale and bias before that without. What it computes on the way must
be needed by nothing else.
"""

from __future__ import annotations

from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.patterns import (
    activations,
    casts,
    depth_space,
    normalisations,
    rotary,
    softmax,
)
from tunefarm.compiler.graph.patterns.finder import Finder, Match, MatchRule
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.types.numerics import is_narrow

PATTERNS: tuple[MatchRule, ...] = (
    normalisations.match_folded,
    normalisations.match,
    normalisations.match_of_groups,
    softmax.match,
    rotary.match,
    depth_space.match,
    activations.match,
    casts.match,
)


def run(graph: Graph, rounds_each: bool = False) -> Graph:
    """The graph with one operator for each pattern.

    Where every operator rounds its result (`rounds_each`) those in 16-bit floats stay decomposed.
    """
    matches = _matches(graph, rounds_each)
    if not matches:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.output in matches:
            matches[node.output].emit(rewriter)
        else:
            rewriter.keep(node)
    return dead_code.run(rewriter.finish())


def _matches(graph: Graph, rounds_each: bool) -> dict[str, Match]:
    """The matches by their last value; none takes in a value that another one does."""
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
