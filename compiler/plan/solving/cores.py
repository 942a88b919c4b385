"""Cores: what elimination leaves, solved by messages first and an integer program last.

Messages give an assignment, a bound, and for each candidate and pair of them a bound of what they
cost. What costs more than the assignment that is there already goes, and what is left falls into
parts and can be eliminated more often than not; the integer program has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

import numpy as np

from tunefarm.compiler.plan.solving.elimination import eliminate
from tunefarm.compiler.plan.solving.factors import Factors
from tunefarm.compiler.plan.solving.integer_program import solve_program
from tunefarm.compiler.plan.solving.messages import Assignment, Messages
from tunefarm.compiler.plan.solving.problem import TOLERANCE

ENOUGH = 1e-3
"""The part of its cost that an assignment may be above the bound to be left as it is."""
ROUNDING = 1e-9
"""Of numbers as large as a conflict's."""

BY_ELIMINATION, BY_MESSAGES, BY_PROGRAM = "elimination", "messages", "integer program"


@dataclass(frozen=True, slots=True)
class CoreSolution:
    """The best assignment that was found for a core, and how."""

    assignment: Assignment
    found_by: str


def solve_core(core: Factors, deadline: float, largest_table: int) -> CoreSolution:
    """The best assignment of a core that is found until a time of the monotonic clock."""
    messages = Messages(core)
    known = messages.run()
    room = ROUNDING * messages.conflict
    if np.isfinite(known.cost):
        room += TOLERANCE * max(abs(known.cost), abs(known.bound))
    if np.isinf(known.bound) or known.cost - known.bound <= room:
        return CoreSolution(_none_better(known), BY_MESSAGES)
    if np.isfinite(known.cost) and known.cost - known.bound <= ENOUGH * abs(known.cost):
        deadline = 0.0  # elimination may still find a better one
    better = _Better(core, messages, known, known.cost - messages.bound + room)
    found, found_by = _solve_rest(known, better, deadline, largest_table)
    if found is None:
        return CoreSolution(_none_better(known), found_by)
    if found.cost >= known.cost:
        found = Assignment(known.chosen, known.cost, min(found.bound, known.cost))
    if found.cost - found.bound <= room:
        found = _none_better(found)
    return CoreSolution(found, found_by)


def _none_better(known: Assignment) -> Assignment:
    """What is known is the best; if it is in conflict there is none without."""
    return Assignment(known.chosen, known.cost, known.cost)


class _Better:
    """The core without what can be in no assignment that is better than one that is known."""

    def __init__(
        self, core: Factors, messages: Messages, known: Assignment, allowed: float
    ) -> None:
        regrets = messages.regrets()
        self.core = core
        self.kept = {
            variable: np.flatnonzero(regrets[variable,] <= allowed) for variable in core.sizes
        }
        self.known = {
            variable: int(np.searchsorted(kept, known.chosen[variable]))
            for variable, kept in self.kept.items()
        }
        self.factors = Factors(
            {each: kept.size for each, kept in self.kept.items() if kept.size > 1}
        )
        for scope, table in core.tables.items():
            if len(scope) > 1:
                table = np.where(regrets[scope] <= allowed, table, np.inf)
            self.factors.add(scope, table[np.ix_(*(self.kept[each] for each in scope))])

    def original(self, chosen: Mapping[int, int]) -> dict[int, int]:
        """The candidates of the whole core, by those that were left."""
        return {
            variable: int(kept[chosen.get(variable, 0)]) for variable, kept in self.kept.items()
        }


def _solve_rest(
    known: Assignment, better: _Better, deadline: float, largest_table: int
) -> tuple[Assignment | None, str]:
    """The best of what is left, None if that is nothing, and how it was found."""
    left = eliminate(better.factors, largest_table)
    if np.isinf(left.constant):
        return None, BY_ELIMINATION
    parts = [(part, solve_program(part, deadline - monotonic())) for part in left.cores]
    found_by = BY_PROGRAM if any(found for _, found in parts) else BY_ELIMINATION
    if any(found and np.isinf(found.bound) for _, found in parts):
        return None, found_by
    chosen: dict[int, int] = {}
    bound = left.constant
    for part, found in parts:
        if found is None:  # what is known was left too
            chosen |= {variable: better.known[variable] for variable in part.sizes}
            bound = -np.inf
        else:
            chosen |= found.chosen
            bound += found.bound
    left.complete(chosen)
    positions = better.original(chosen)
    cost = better.core.cost_of(positions)
    # All that was dropped costs more than what is known.
    bound = max(known.bound, min(bound, known.cost))
    return Assignment(positions, cost, min(bound, cost)), found_by
