"""Solver: one candidate for each variable, so that all costs together are minimal.

What it costs is a sum of one number for each variable, by its candidate, and one for each pair of
variables that depend on each other, by the candidates of both (in the literature a partitioned
Boolean quadratic problem, PBQP, or the energy of a pairwise Markov random field):

    conv1   NCHW 3.1   NCHW16c 1.9             conv1, relu1        NCHW   NCHW16c
    relu1   NCHW 0.2   NCHW16c 0.2                       NCHW         0       0.4
                                                      NCHW16c       0.4         0

A variable with at most two neighbours is eliminated: for all candidates of these its tables say
which of its own is the best and what that costs, which is a new table of the neighbours alone (R0,
R1 and R2 of Scholz and Eckstein 2002). Chains with branches and joins, as models are, go to the
last variable. What is left, where each depends on three others or more, is an integer program for
HiGHS by way of SciPy.

One and the same problem has one and the same solution.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import PlanError

Costs: TypeAlias = npt.NDArray[np.float64]
Pairs: TypeAlias = dict[int, dict[int, Costs]]
"""Costs [candidates of one, candidates of the other], by both variables in either order."""

MOST_NODES = 20_000
"""Of the integer program's search tree: some seconds."""


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
        one and the same pair are added. Raises PlanError for variables without candidates, costs of
        another shape, and costs that are not a number or minus infinity.
        """
        names = tuple(costs)
        candidates = tuple(map(tuple, costs.values()))
        unary = tuple(np.array(list(named.values()), dtype=np.float64) for named in costs.values())
        for name, numbers in zip(names, unary, strict=True):
            _check(numbers, (max(1, numbers.size),), name)
        tables: dict[tuple[int, int], Costs] = {}
        for first, second, given in pairs:
            key, table = (names.index(first), names.index(second)), np.array(given, np.float64)
            _check(table, tuple(len(candidates[at]) for at in key), f"{first}, {second}")
            if key[0] > key[1]:
                key, table = (key[1], key[0]), table.T
            tables[key] = tables[key] + table if key in tables else table
        return ChoiceProblem(names, candidates, unary, MappingProxyType(tables))

    def cost_of(self, chosen: Mapping[str, str]) -> float:
        """The cost of one candidate for each variable."""
        at = [
            own.index(chosen[name]) for name, own in zip(self.names, self.candidates, strict=True)
        ]
        total = sum(float(costs[own]) for costs, own in zip(self.costs, at, strict=True))
        return total + sum(float(table[at[a], at[b]]) for (a, b), table in self.pairs.items())


def solve(problem: ChoiceProblem) -> dict[str, str]:
    """The candidates of minimum cost by variable.

    Raises PlanError if no assignment is possible, or if none was found within `MOST_NODES`.
    """
    own = dict(enumerate(problem.costs))
    pairs: Pairs = {variable: {} for variable in own}
    for (first, second), table in problem.pairs.items():
        pairs[first][second], pairs[second][first] = table, table.T
    eliminated = _eliminate(own, pairs)
    chosen = _solve_program({variable: own[variable] for variable in pairs}, pairs)
    for variable, others, table in reversed(eliminated):
        chosen[variable] = int(table[:, *(chosen[other] for other in others)].argmin())
    named = {
        name: candidates[chosen[at]]
        for at, (name, candidates) in enumerate(zip(problem.names, problem.candidates, strict=True))
    }
    if np.isinf(problem.cost_of(named)):
        raise PlanError("no assignment is possible: some choices contradict each other")
    return named


def _check(numbers: Costs, shape: tuple[int, ...], of: str) -> None:
    if numbers.shape != shape:
        raise PlanError(f"the costs of {of} are {numbers.shape}, not {shape}")
    if np.isnan(numbers).any() or np.isneginf(numbers).any():
        raise PlanError(f"the costs of {of} are not all numbers")


# --- elimination ----------------------------------------------------------------------------------

Eliminated: TypeAlias = tuple[int, tuple[int, ...], Costs]
"""A variable, its neighbours when it went, and the minimum cost [its candidates, those of each
neighbour] of all that was eliminated up to it and depends on it."""


def _eliminate(own: dict[int, Costs], pairs: Pairs) -> list[Eliminated]:
    """Take out of `pairs`, the smallest table first, the variables that have one candidate or at
    most two neighbours; their costs go to these."""

    def entries(variable: int) -> int:
        return own[variable].size * prod(own[other].size for other in pairs[variable])

    eliminated: list[Eliminated] = []
    for variable in [variable for variable in own if own[variable].size == 1]:
        for other, table in _taken(variable, pairs):
            own[other] = own[other] + table[0]
        eliminated.append((variable, (), own[variable]))
    waiting = [(entries(variable), variable) for variable in pairs]
    heapq.heapify(waiting)
    while waiting:
        size, variable = heapq.heappop(waiting)
        if variable not in pairs or size != entries(variable) or len(pairs[variable]) > 2:
            continue  # it has gone, or waits with another size, or until a neighbour goes
        match _taken(variable, pairs):
            case []:
                others, table = (), own[variable]
            case [(other, of_pair)]:
                others, table = (other,), own[variable][:, None] + of_pair
                own[other] = own[other] + table.min(axis=0)
            case [(first, one), (second, two)]:
                others = (first, second)
                table = own[variable][:, None, None] + one[:, :, None] + two[:, None, :]
                least = pairs[first].get(second, 0.0) + table.min(axis=0)
                pairs[first][second], pairs[second][first] = least, least.T
        eliminated.append((variable, others, table))
        for other in others:
            heapq.heappush(waiting, (entries(other), other))
    return eliminated


def _taken(variable: int, pairs: Pairs) -> list[tuple[int, Costs]]:
    """The neighbours of a variable in order, with the costs [its candidates, theirs] that they
    share; both go."""
    found = sorted(pairs.pop(variable).items(), key=lambda item: item[0])
    for other, _ in found:
        del pairs[other][variable]
    return found


# --- the integer program --------------------------------------------------------------------------


def _solve_program(own: Mapping[int, Costs], pairs: Pairs) -> dict[int, int]:
    """The positions of the candidates of minimum cost, by variable.

    A number of 0 or 1 for each candidate of a variable, which add up to 1, and one in [0, 1] for
    both candidates of a pair, which add up to those of either side (the local polytope: where the
    first are whole numbers these are too). What is impossible has an upper bound of 0.
    """
    if not own:
        return {}
    from scipy.optimize import Bounds, LinearConstraint, milp  # heavy, and rarely needed
    from scipy.sparse import block_array, eye_array, kron

    keys = sorted((first, second) for first in pairs for second in pairs[first] if first < second)
    place = {variable: at for at, variable in enumerate(own)}
    tables = [*own.values(), *(pairs[first][second] for first, second in keys)]
    equations: list[tuple[dict[int, object], Costs]] = [
        ({at: np.ones((1, costs.size))}, np.ones(1)) for at, costs in enumerate(own.values())
    ]
    for at, (first, second) in enumerate(keys, start=len(own)):
        rows, columns = tables[at].shape
        of_first = kron(eye_array(rows), np.ones((1, columns)))
        of_second = kron(np.ones((1, rows)), eye_array(columns))
        equations += [
            ({at: of_first, place[first]: -eye_array(rows)}, np.zeros(rows)),
            ({at: of_second, place[second]: -eye_array(columns)}, np.zeros(columns)),
        ]
    blocks = [[terms.get(at) for at in range(len(tables))] for terms, _ in equations]
    sums = np.concatenate([each for _, each in equations])
    costs = np.concatenate([_above_least(table) for table in tables])
    found = milp(
        np.where(np.isfinite(costs), costs, 0.0) * (1e3 / _largest(costs)),  # absolute tolerances
        integrality=np.arange(costs.size) < sum(each.size for each in own.values()),
        bounds=Bounds(0.0, np.isfinite(costs).astype(np.float64)),
        constraints=LinearConstraint(block_array(blocks, format="csr"), sums, sums),
        options={"mip_rel_gap": 0.0, "node_limit": MOST_NODES},
    )
    if found.x is None:
        raise PlanError(f"no assignment was found: {found.message}")
    ends = np.cumsum([each.size for each in own.values()])
    parts = zip(own, np.split(found.x[: ends[-1]], ends[:-1]), strict=True)
    return {variable: int(numbers.argmax()) for variable, numbers in parts}


def _above_least(table: Costs) -> Costs:
    """The costs of a table, of which every assignment has one, above the least of them."""
    numbers = table.ravel()
    finite = numbers[np.isfinite(numbers)]
    return numbers - (finite.min() if finite.size else 0.0)


def _largest(costs: Costs) -> float:
    return float(costs[np.isfinite(costs)].max(initial=0.0)) or 1.0
