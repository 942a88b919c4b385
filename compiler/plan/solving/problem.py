"""ChoiceProblem: one candidate for each variable, so that all costs together are minimal.

What it costs is a sum of one number for each variable, by its candidate, and one for each pair of
variables that depend on each other, by the candidates of both (in the literature a partitioned
Boolean quadratic problem, PBQP, or the energy of a pairwise Markov random field):

    conv1   NCHW 3.1   NCHW16c 1.9             conv1, relu1        NCHW   NCHW16c
    relu1   NCHW 0.2   NCHW16c 0.2                       NCHW         0       0.4
                                                      NCHW16c       0.4         0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import PlanError

Costs: TypeAlias = npt.NDArray[np.float64]

TOLERANCE = 1e-6
"""Costs that differ by this part of themselves are the same: sums are rounded, in any order."""


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceProblem:
    """Variables, their candidates and costs; infinity is what cannot be chosen.

    `pairs` has the costs [candidates of one, candidates of the other] of variables by their
    positions in `names`, the lower one first.
    """

    names: tuple[str, ...]
    candidates: tuple[tuple[str, ...], ...]
    costs: tuple[Costs, ...]
    pairs: Mapping[tuple[int, int], Costs]

    @staticmethod
    def of(
        costs: Mapping[str, Mapping[str, float]],
        pairs: Iterable[tuple[str, str, npt.ArrayLike]] = (),
    ) -> ChoiceProblem:
        """The problem of these costs by variable and candidate, and of these pairs.

        A pair is two variables and their costs [candidates of the first, of the second]; those of
        one and the same pair are added. Raises PlanError for variables without candidates or that
        there are not, costs of another shape, and costs that are not a number or minus infinity.
        """
        names = tuple(costs)
        candidates = tuple(map(tuple, costs.values()))
        unary = tuple(np.array(list(named.values()), dtype=np.float64) for named in costs.values())
        for name, numbers in zip(names, unary, strict=True):
            if not numbers.size:
                raise PlanError(f"{name!r} has no candidate")
            _check(numbers, name)
        positions = {name: at for at, name in enumerate(names)}
        tables: dict[tuple[int, int], Costs] = {}
        for first, second, given in pairs:
            table = np.array(given, dtype=np.float64)
            for name in (first, second):
                if name not in positions:
                    raise PlanError(f"{name!r} is no variable: it cannot be paired")
            if first == second:
                raise PlanError(f"{first!r} is paired with itself")
            key = positions[first], positions[second]
            shape = tuple(len(candidates[at]) for at in key)
            if table.shape != shape:
                raise PlanError(f"{first!r} and {second!r}: costs {table.shape}, not {shape}")
            _check(table, f"{first}, {second}")
            if key[0] > key[1]:
                key, table = (key[1], key[0]), table.T
            tables[key] = tables[key] + table if key in tables else table
        return ChoiceProblem(names, candidates, unary, MappingProxyType(tables))

    def cost_of(self, chosen: Sequence[int]) -> float:
        """The cost of one candidate for each variable, by position."""
        total = sum(float(self.costs[at][choice]) for at, choice in enumerate(chosen))
        return total + sum(
            float(table[chosen[first], chosen[second]])
            for (first, second), table in self.pairs.items()
        )

    def of_variables(self, kept: Sequence[int]) -> ChoiceProblem:
        """The problem of some variables alone: their costs, and those of pairs of them."""
        at = {variable: position for position, variable in enumerate(kept)}
        pairs = {}
        for (first, second), table in self.pairs.items():
            if first in at and second in at:
                key = at[first], at[second]
                pairs[min(key), max(key)] = table if key[0] < key[1] else table.T
        return ChoiceProblem(
            tuple(self.names[variable] for variable in kept),
            tuple(self.candidates[variable] for variable in kept),
            tuple(self.costs[variable] for variable in kept),
            MappingProxyType(pairs),
        )


@dataclass(frozen=True, slots=True)
class Solution:
    """A candidate for each variable, what they cost, and what is known of the minimum cost.

    `bound`: no assignment costs less. `found_by`: how the last of it was found, "elimination",
    "messages" or "integer program".
    """

    chosen: Mapping[str, str]
    positions: tuple[int, ...]  # of the candidates, by variable
    cost: float
    bound: float
    found_by: str

    @property
    def is_optimal(self) -> bool:
        """Whether it is known that none costs less, but for rounding."""
        return self.cost - self.bound <= TOLERANCE * max(abs(self.cost), abs(self.bound))


def solution_of(
    problem: ChoiceProblem, positions: Sequence[int], bound: float, found_by: str
) -> Solution:
    """The solution that has these candidates; its bound is at most its cost."""
    cost = problem.cost_of(positions)
    named = zip(problem.names, problem.candidates, positions, strict=True)
    chosen = {name: candidates[position] for name, candidates, position in named}
    return Solution(
        MappingProxyType(chosen), tuple(map(int, positions)), cost, min(bound, cost), found_by
    )


def _check(numbers: Costs, of: str) -> None:
    if np.isnan(numbers).any() or np.isneginf(numbers).any():
        raise PlanError(f"the costs of {of} are not all numbers")
