"""Problems of choice, drawn by a seed: the shapes of models' graphs, and harder ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from tunefarm.compiler.plan.solving.problem import ChoiceProblem

Edges = list[tuple[int, int]]


def chain(variables: int) -> Edges:
    return [(at, at + 1) for at in range(variables - 1)]


def tree(variables: int, rng: np.random.Generator) -> Edges:
    return [(int(rng.integers(at)), at) for at in range(1, variables)]


def residual(variables: int) -> Edges:
    """Blocks of three in a row and an addition, which reads the block's input too."""
    return chain(variables) + [(at, at + 4) for at in range(0, variables - 4, 4)]


def inception(variables: int) -> Edges:
    """Four branches of two between one concat and the next."""
    edges = []
    for at in range(0, variables - 9, 9):
        for branch in range(4):
            first = at + 1 + 2 * branch
            edges += [(at, first), (first, first + 1), (first + 1, at + 9)]
    return edges


def skipping(variables: int) -> Edges:
    """An encoder and a decoder, each level of which reads that of the encoder."""
    return chain(variables) + [(at, variables - 1 - at) for at in range(variables // 2 - 1)]


def grid(variables: int) -> Edges:
    width = max(int(variables**0.5), 1)
    right = [(at, at + 1) for at in range(variables - 1) if (at + 1) % width]
    return right + [(at, at + width) for at in range(variables - width)]


def dense(variables: int, edges: int, rng: np.random.Generator) -> Edges:
    """A tree, so that it is connected, and more pairs."""
    found = set(tree(variables, rng))
    most = variables * (variables - 1) // 2
    while len(found) < min(edges, most):
        first, second = sorted(int(each) for each in rng.integers(variables, size=2))
        if first != second:
            found.add((first, second))
    return sorted(found)


def layout_like(edges: Edges, variables: int, candidates: int, seed: int) -> ChoiceProblem:
    """Each variable has its own best candidates; a change between neighbours costs its bytes."""
    rng = np.random.default_rng(seed)
    work = rng.lognormal(0.0, 1.0, variables)
    costs = work[:, None] * rng.lognormal(0.0, 0.3, (variables, candidates)) * 1e-4
    moved = work * rng.lognormal(-2.0, 1.0, variables) * 1e-4
    pairs = []
    for first, second in edges:
        change = rng.uniform(0.7, 1.3, (candidates, candidates)) * moved[first]
        np.fill_diagonal(change, 0.0)
        pairs.append((str(first), str(second), change))
    return named(costs, pairs)


def uniform(edges: Edges, variables: int, candidates: int, seed: int) -> ChoiceProblem:
    """All costs are drawn alike, those of pairs too: nothing is near anything."""
    rng = np.random.default_rng(seed)
    costs = rng.uniform(0, 1, (variables, candidates))
    shape = (candidates, candidates)
    return named(costs, [(str(a), str(b), rng.uniform(0, 1, shape)) for a, b in edges])


def named(
    costs: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    pairs: list[tuple[str, str, np.ndarray[tuple[int, int], np.dtype[np.float64]]]],
) -> ChoiceProblem:
    return ChoiceProblem.of(
        {str(at): {f"c{i}": float(c) for i, c in enumerate(row)} for at, row in enumerate(costs)},
        pairs,
    )


def assignments(problem: ChoiceProblem) -> Iterator[tuple[int, ...]]:
    """All that there are."""
    return product(*(range(len(candidates)) for candidates in problem.candidates))
