"""Solver: the candidates whose total cost is minimal, exactly where the problem allows.

Problems of models are nearly always chains with branches and joins, which elimination solves
exactly in milliseconds (`solving.elimination`). Cores where all depend on three others or more are
solved by messages between them, which give a bound, and what these leave open by an integer program
(`solving.cores`).

One and the same problem has one and the same solution, the first of its candidates where several
are as good, except where time ran out before the integer program was solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import numpy as np

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.solving.cores import BY_ELIMINATION, BY_MESSAGES, BY_PROGRAM, solve_core
from tunefarm.compiler.plan.solving.elimination import LARGEST_TABLE, eliminate
from tunefarm.compiler.plan.solving.factors import Factors
from tunefarm.compiler.plan.solving.problem import ChoiceProblem, Solution, solution_of

__all__ = ["ChoiceProblem", "Solution", "solve"]

SECONDS = 1.0
"""For the integer program of what elimination and messages leave more than 0.1 % open."""
MOST_NAMED = 6
"""Variables that an error names."""


def solve(
    problem: ChoiceProblem, seconds: float = SECONDS, largest_table: int = LARGEST_TABLE
) -> Solution:
    """The assignment of minimum cost, or the best that was found in time, and a bound.

    `seconds` limit the integer program alone, which is for what messages leave more than 0.1 %
    above the bound; all else takes about one for 1,000 variables that all depend on many others.
    `largest_table` limits elimination with more than two neighbours, in entries. Raises PlanError
    if no assignment is possible, which names variables that contradict each other, or if none was
    found in time.
    """
    solution = _solve(problem, seconds, largest_table)
    if np.isinf(solution.bound):
        raise PlanError(_contradiction(problem, seconds, largest_table))
    if np.isinf(solution.cost):
        raise PlanError(f"no assignment without a conflict was found within {seconds:g} seconds")
    return solution


# --- parts ----------------------------------------------------------------------------------------


def _solve(problem: ChoiceProblem, seconds: float, largest_table: int) -> Solution:
    """The solution; its bound is infinite if there is none, its cost if none was found."""
    deadline = monotonic() + seconds
    left = eliminate(Factors.of_problem(problem), largest_table)
    chosen = dict.fromkeys(range(len(problem.names)), 0)
    bound, ways = left.constant, {BY_ELIMINATION}
    for core in left.cores:
        found = solve_core(core, deadline, largest_table)
        chosen |= found.assignment.chosen
        bound += found.assignment.bound
        ways |= {BY_MESSAGES, found.found_by}
    left.complete(chosen)
    positions = [chosen[variable] for variable in range(len(problem.names))]
    found_by = next(way for way in (BY_PROGRAM, BY_MESSAGES, BY_ELIMINATION) if way in ways)
    if np.isinf(bound):
        return Solution({}, tuple(positions), np.inf, np.inf, found_by)
    if not left.cores:  # but for rounding
        bound = problem.cost_of(positions)
    return solution_of(problem, positions, bound, found_by)


def _contradiction(problem: ChoiceProblem, seconds: float, largest_table: int) -> str:
    """Why there is no assignment: the fewest variables of which none can be left out."""
    kept = sorted(_contradicting(problem, [], False, range(len(problem.names)), seconds))
    names = [problem.names[variable] for variable in kept]
    if len(names) == 1:
        return f"no candidate of {names[0]!r} is possible"
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(map(repr, names[:MOST_NAMED]))}{more} contradict each other"


def _contradicting(
    problem: ChoiceProblem,
    given: Sequence[int],
    has_more: bool,
    among: Sequence[int],
    seconds: float,
) -> list[int]:
    """Of `among` those that a contradiction with `given` needs (QuickXplain, Junker 2004)."""
    if has_more and np.isinf(_solve(problem.of_variables(given), seconds, LARGEST_TABLE).bound):
        return []
    if len(among) == 1:
        return list(among)
    half = len(among) // 2
    right = _contradicting(problem, [*given, *among[:half]], True, among[half:], seconds)
    left = _contradicting(problem, [*given, *right], bool(right), among[:half], seconds)
    return [*left, *right]
