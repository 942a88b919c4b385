"""Elimination of variables: exact, as long as few others depend on each at the same time.

A variable x is minimised away: its tables together say for all candidates of its neighbours which
of its own is the best and what that costs, which is a new table of the neighbours alone:

    x - y                 x - y, x - z
    y's costs change      y and z get costs as a pair

Where each variable has at most two neighbours when its turn comes, this is dynamic programming on
chains, trees and series-parallel graphs, the R0, R1 and R2 of PBQP solvers (Scholz and Eckstein
2002). More neighbours make larger tables; where those of a whole core stay small it is eliminated
too (bucket elimination, Dechter 1999), and left alone otherwise.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from math import prod

import numpy as np

from tunefarm.compiler.plan.solving.factors import Factors, Scope, components
from tunefarm.compiler.plan.solving.problem import Costs

LARGEST_TABLE = 1 << 19
"""Entries of a table when variables with three or more neighbours are eliminated."""
LARGEST_SUM = 1 << 22
"""The same of all tables together: 32 MB, some 50 ms."""

Step = tuple[int, Scope]
"""A variable, and its neighbours when it is eliminated."""


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """A variable that was eliminated.

    `table` is the minimum cost [candidates of variable, of each of others] of all that was
    eliminated up to it and depends on it.
    """

    variable: int
    others: Scope
    table: Costs

    def column(self, chosen: Mapping[int, int]) -> Costs:
        """The costs of the variable's candidates, given those of the others."""
        place: tuple[slice | int, ...] = tuple(chosen[other] for other in self.others)
        return self.table[(slice(None), *place)]


@dataclass(frozen=True, slots=True, eq=False)
class Elimination:
    """What was eliminated, in order, and the cores that are left, connected parts each.

    `constant` is the minimum cost of all that is not in or connected with a core.
    """

    buckets: tuple[Bucket, ...]
    cores: tuple[Factors, ...]
    constant: float

    def complete(self, chosen: MutableMapping[int, int]) -> None:
        """Give each eliminated variable its best candidate; those of the cores are given."""
        for bucket in reversed(self.buckets):
            chosen[bucket.variable] = int(bucket.column(chosen).argmin())


def eliminate(factors: Factors, largest_table: int = LARGEST_TABLE) -> Elimination:
    """Eliminate all variables that can be, exactly. `factors` are used up.

    With three or more neighbours those of a core go that need no table larger than this.
    """
    neighbours = factors.neighbours()
    steps = _order(neighbours, factors.sizes, lambda entries, others: others <= 2)
    for core in components(neighbours):
        whole = {variable: set(neighbours[variable]) for variable in core}
        further = _order(whole, factors.sizes, lambda entries, others: entries <= largest_table)
        if not whole and _entries(further, factors.sizes) <= LARGEST_SUM:
            steps += further
            for variable in core:
                del neighbours[variable]
    buckets = []
    for variable, others in steps:
        table = factors.take(variable, others)
        factors.add(others, np.asarray(table.min(axis=0)))
        buckets.append(Bucket(variable, others, table))
    cores = tuple(factors.of_variables(core) for core in components(neighbours))
    return Elimination(tuple(buckets), cores, factors.constant)


def _order(
    neighbours: dict[int, set[int]],
    sizes: Mapping[int, int],
    may: Callable[[int, int], bool],
) -> list[Step]:
    """The variables to eliminate, that with the smallest table first; `neighbours` has the rest.

    `may` says of a table's entries and a variable's number of neighbours whether it may go.
    """

    def entries(variable: int) -> int:
        return sizes[variable] * prod(sizes[other] for other in neighbours[variable])

    steps: list[Step] = []
    waiting = [(entries(variable), variable) for variable in neighbours]
    heapq.heapify(waiting)
    while waiting:
        size, variable = heapq.heappop(waiting)
        if variable not in neighbours or size != entries(variable):
            continue  # it is waiting with another size, or has gone
        if not may(size, len(neighbours[variable])):
            continue  # until a neighbour goes
        others = tuple(sorted(neighbours.pop(variable)))
        steps.append((variable, others))
        for other in others:
            neighbours[other].update(others)
            neighbours[other] -= {other, variable}
            heapq.heappush(waiting, (entries(other), other))
    return steps


def _entries(steps: list[Step], sizes: Mapping[int, int]) -> int:
    return sum(
        sizes[variable] * prod(sizes[other] for other in others) for variable, others in steps
    )
