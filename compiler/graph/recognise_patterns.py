"""Pass: operators instead of the decomposed patterns of models (compiler/graph/patterns).

A pattern is found from its last node backwards, the last of a graph first, so that the largest one
wins: a normalisation with its scale and bias before that without. What it computes on the way must
be needed by nothing else.
"""

from __future__ import annotations

from collections.abc import Collection

from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.pattern_sites import PatternSite, PatternSites
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


def run(graph: Graph, rounds_each: bool = False, sites: PatternSites | None = None) -> Graph:
    """The graph with one operator for each pattern.

    Where every operator rounds its result (`rounds_each`) those in 16-bit floats stay decomposed,
    and so do those of which `sites` say it.
    """
    sites = PatternSites() if sites is None else sites
    matches = _matches(graph, rounds_each, sites.left)
    taken = sites.taken(graph, (_site(graph, *found) for found in matches.values()))
    if not taken:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.output in taken:
            matches[node.output][0].emit(rewriter)
        else:
            rewriter.keep(node)
    return dead_code.run(rewriter.finish())


def _matches(
    graph: Graph, rounds_each: bool, left: Collection[str]
) -> dict[str, tuple[Match, frozenset[str]]]:
    """The matches by their last value, and what each takes in: no value that another one does.

    None takes in a value that is `left` as it is.
    """
    finder = Finder(graph)
    found: dict[str, tuple[Match, frozenset[str]]] = {}
    taken = set(left)
    for node in reversed(graph.nodes):
        if node.output in taken or (rounds_each and is_narrow(finder.dtype(node.output))):
            continue
        for rule in PATTERNS:
            match = rule(finder, node)
            inside = finder.inside(match) if match is not None else None
            if match is not None and inside is not None and not inside & taken:
                found[node.output] = match, inside
                taken |= inside
                break
    return found


def _site(graph: Graph, match: Match, inside: frozenset[str]) -> PatternSite:
    ordered = tuple(node.output for node in graph.nodes if node.output in inside)
    return PatternSite(match.last.output, match.operator, ordered)
