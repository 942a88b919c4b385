"""Pass: operators instead of the decomposed patterns of models (compiler/graph/patterns).

A pattern is found from its last node backwards, the last of a graph first, so that the largest one
wins: a normalisation with its scale and bias before that without. What it computes on the way must
be needed by nothing else.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.patterns import (
    activations,
    depth_space,
    normalisations,
    rotary,
)
from tunefarm.compiler.graph.patterns.finder import Finder, Match, MatchRule, operand_pairs
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import is_narrow
from tunefarm.compiler.types.tensor_type import Array

# Operators on 16-bit floats that models spell with casts to f32 and back.
#
#     cast(f16, softmax(cast(f32, x)))              ->  softmax(x)
#     cast(f16, rms_norm(cast(f32, x))) scale       ->  rms_norm(x, scale)
#
# An operator on 16-bit floats is computed in f32 and rounded once, so the first is exact; the
# second takes one rounding off. Norms, softmax and activation functions may be decomposed, too.

_WIDE = frozenset(
    "softmax log_softmax layer_norm rms_norm rotary gelu swish hard_swish mish".split()
)
_SPELLED = (normalisations.match, activations.match_softmax, activations.match, rotary.match)


def _match_casts(finder: Finder, node: Node) -> Match | None:
    """The operator that ends in this cast, or in the product with a scale behind it."""
    if node.operator == "cast":
        return _narrowed(finder, node)
    if node.operator != "mul" or not is_narrow(finder.dtype(node.output)):
        return None
    for normal, scale in operand_pairs(node):
        found = _normalised(finder, normal)
        if found is not None and finder.shape(node.output) == finder.shape(normal):
            return replace(found, last=node, inputs=(*found.inputs, scale))
    return None


def _normalised(finder: Finder, name: str) -> Match | None:
    """The RMS norm without a scale that a value is."""
    norm, cast = finder.node(name, "rms_norm"), finder.node(name, "cast")
    if norm is not None:
        found: Match | None = Match(norm, "rms_norm", norm.inputs, norm.attributes)
    else:
        found = _narrowed(finder, cast) if cast is not None else None
    plain = found is not None and found.operator == "rms_norm" and len(found.inputs) == 1
    return found if plain and found is not None and not found.constants else None


def _narrowed(finder: Finder, last: Node) -> Match | None:
    dtype, inner = finder.dtype(last.output), finder.producer(last.inputs[0])
    if inner is None or not is_narrow(dtype) or finder.dtype(inner.output) is not dtype.wide:
        return None
    spelled = _operator(finder, inner)
    if spelled is None or spelled.shape is not None:
        return None
    sources = [_source(finder, name, dtype) for name in spelled.inputs]
    inputs = tuple(source for source in sources if source is not None)
    held = [_held(finder.constant(name), dtype) for name in spelled.inputs[len(inputs) :]]
    held += [_held(array, dtype) for array in spelled.constants]
    constants = tuple(array for array in held if array is not None)
    if not inputs or None in sources[: len(inputs)] or len(constants) < len(held):
        return None
    return replace(spelled, last=last, inputs=inputs, constants=constants)


def _operator(finder: Finder, node: Node) -> Match | None:
    """The operator that a node is, or that it is the end of."""
    if node.operator in _WIDE:
        return Match(node, node.operator, node.inputs, node.attributes)
    spelled = (rule(finder, node) for rule in _SPELLED)
    return next((found for found in spelled if found is not None), None)


def _source(finder: Finder, name: str, dtype: DType) -> str | None:
    """What a value is cast from, if that has this type."""
    cast = finder.node(name, "cast")
    return cast.inputs[0] if cast is not None and finder.dtype(cast.inputs[0]) is dtype else None


def _held(array: Array | None, dtype: DType) -> Array | None:
    """A constant in a narrower type, if that has all of its numbers."""
    if array is None:
        return None
    narrow = array.astype(dtype.numpy)
    return narrow if np.array_equal(narrow.astype(array.dtype), array) else None


PATTERNS: tuple[MatchRule, ...] = (
    normalisations.match_folded,
    normalisations.match,
    normalisations.match_of_groups,
    activations.match_softmax,
    rotary.match,
    depth_space.match,
    activations.match,
    _match_casts,
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
