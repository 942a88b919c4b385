"""Solver: the candidates that cost least together, exactly where the problem allows.

    solve              the best assignment, a bound, and whether it is known to be the best
    min_marginals      what the best assignment with each candidate costs: which could yet be chosen
    best_solutions     the k best, each once
    priced_solutions   from the fastest to the smallest, as each byte is given a price

Problems of models are nearly always chains with branches and joins, which elimination solves
exactly in milliseconds (`solving.elimination`). Cores where all depend on three others or more are
solved by messages between them, which give a bound, and what these leave open by an integer program
(`solving.cores`).

One and the same problem has one and the same solution, the first of its candidates where several
are as good, except where time ran out before the integer program was solved.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from time import monotonic
from typing import TypeAlias

import numpy as np

from compiler.errors import PlanError
from compiler.plan.solving.cores import BY_ELIMINATION, BY_MESSAGES, BY_PROGRAM, solve_core
from compiler.plan.solving.elimination import LARGEST_TABLE, Bucket, eliminate
from compiler.plan.solving.factors import Factors, Scope, components
from compiler.plan.solving.messages import Messages
from compiler.plan.solving.problem import (
    TOLERANCE,
    ChoiceProblem,
    Costs,
    Solution,
    solution_of,
)

__all__ = [
    "ChoiceProblem",
    "Costs",
    "Solution",
    "best_solutions",
    "min_marginals",
    "priced_solutions",
    "solve",
]

SECONDS = 1.0
"""For the integer program of what elimination and messages leave more than 0.1 % open."""
MOST_PRICES = 24
"""Prices that are tried between the fastest solution and the smallest."""
MOST_NAMED = 6
"""Variables that an error names."""

_Branch: TypeAlias = tuple[float, int, dict[int, int], int, int, frozenset[int]]


def solve(
    problem: ChoiceProblem, seconds: float = SECONDS, largest_table: int = LARGEST_TABLE
) -> Solution:
    """The assignment that costs least, or the best that was found in time, and a bound.

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


def min_marginals(
    problem: ChoiceProblem, solution: Solution, largest_table: int = LARGEST_TABLE
) -> dict[str, Costs]:
    """By variable, what the best assignment with each of its candidates costs [candidates].

    It is exact where elimination solves the problem, and at most that elsewhere: what messages know
    of candidates in a core, and of what depends on it. The cost of candidates that are chosen is
    that of the solution, the cost of what is impossible is infinite.
    """
    left = eliminate(Factors.of_problem(problem), largest_table)
    regrets: dict[Scope, Costs] = {}
    bound = left.constant
    for core in left.cores:
        messages = Messages(core)
        messages.run()
        bound += messages.bound
        regrets.update(messages.regrets())
    lost = max(solution.bound - bound, 0.0)
    of_cores = _connected(problem, {variable for core in left.cores for variable in core.sizes})
    known = {scope[0]: table for scope, table in regrets.items() if len(scope) == 1}
    known |= left.regrets(regrets.__getitem__)
    marginals = {}
    for variable, name in enumerate(problem.names):
        regret = known.get(variable, np.zeros(problem.costs[variable].size))
        if variable in of_cores:  # there regrets are above the bound of messages
            regret = np.maximum(regret - lost, 0.0)
        marginals[name] = solution.bound + regret
        marginals[name][solution.positions[variable]] = solution.cost
    return marginals


def best_solutions(
    problem: ChoiceProblem,
    most: int,
    seconds: float = SECONDS,
    largest_table: int = LARGEST_TABLE,
) -> list[Solution]:
    """The assignments that cost least, at most this many, each once, the best first.

    Where a core is left they are the best of those that agree with the first in it. Raises what
    `solve` does.
    """
    first = solve(problem, seconds, largest_table)
    buckets = eliminate(Factors.of_problem(problem), largest_table).buckets[::-1]
    found: list[Solution] = []
    ties = count()
    chosen = dict(enumerate(first.positions))
    # Cost; then an assignment, the bucket at which it is changed, to what, and what that has had.
    waiting: list[_Branch] = [(first.cost, next(ties), chosen, -1, 0, frozenset())]
    while waiting and len(found) < most:
        cost, _, before, place, choice, had = heapq.heappop(waiting)
        chosen = _changed(buckets, place, choice, before)
        positions = [chosen[variable] for variable in range(len(problem.names))]
        found.append(solution_of(problem, positions, first.bound, first.found_by))
        for at in range(max(place, 0), len(buckets)):
            column, own = buckets[at].column(chosen), chosen[buckets[at].variable]
            had_here = had | {own} if at == place else frozenset([own])
            others = column.copy()
            others[list(had_here)] = np.inf
            other = int(others.argmin())
            if np.isfinite(others[other]):
                more = float(others[other] - column[own])
                branch = (cost + more, next(ties), chosen, at, other, had_here)
                heapq.heappush(waiting, branch)
    return found


def priced_solutions(
    problem: ChoiceProblem, amounts: ChoiceProblem, seconds: float = SECONDS
) -> list[Solution]:
    """From the solution that costs least to that of the least amount, as amounts get a price.

    `amounts` has the same variables and candidates, and bytes instead of costs. Each solution is
    the best for its price, and so none of its amount or less costs less; between two there may
    be others that no price finds (they lie above the convex hull). What fits into memory is not the
    sum of what candidates need, so the caller plans the memory of one after another and takes the
    first that fits. Raises what `solve` does.
    """
    fastest = solve(problem, seconds)
    least = _smallest(problem, amounts, seconds)
    smallest = solution_of(problem, least.positions, fastest.bound, least.found_by)
    found = {fastest.positions: fastest, smallest.positions: smallest}
    open_ = [(fastest, smallest)]
    for _ in range(MOST_PRICES):
        if not open_:
            break
        left, right = open_.pop(0)
        saved = amounts.cost_of(left.positions) - amounts.cost_of(right.positions)
        lost = right.cost - left.cost
        if saved <= 0 or lost <= 0:
            continue
        price = lost / saved
        priced = problem.plus(price, amounts)
        between = solve(priced, seconds)
        known = priced.cost_of(left.positions)
        if known - between.cost <= TOLERANCE * abs(known):
            continue
        solution = solution_of(problem, between.positions, fastest.bound, between.found_by)
        found[solution.positions] = solution
        open_ += [(left, solution), (solution, right)]
    return sorted(found.values(), key=lambda solution: (solution.cost, solution.positions))


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


def _changed(
    buckets: Sequence[Bucket], place: int, choice: int, chosen: dict[int, int]
) -> dict[int, int]:
    """The best assignment with this choice at a bucket, and the same before it; itself for -1."""
    if place < 0:
        return chosen
    changed = chosen | {buckets[place].variable: choice}
    for bucket in buckets[place + 1 :]:
        changed[bucket.variable] = int(bucket.column(changed).argmin())
    return changed


def _smallest(problem: ChoiceProblem, amounts: ChoiceProblem, seconds: float) -> Solution:
    """The least amount, and of several the one that costs least."""
    least = solve(amounts, seconds)
    dearest = sum(abs(float(costs[np.isfinite(costs)].sum())) for costs in problem.costs)
    weight = TOLERANCE * max(abs(least.cost), 1.0) / (dearest or 1.0)
    return solve(amounts.plus(weight, problem), seconds)


def _connected(problem: ChoiceProblem, variables: set[int]) -> set[int]:
    """All that depend on any of these, directly or not."""
    neighbours: dict[int, set[int]] = {at: set() for at in range(len(problem.names))}
    for first, second in problem.pairs:
        neighbours[first].add(second)
        neighbours[second].add(first)
    parts = (part for part in components(neighbours) if variables.intersection(part))
    return {variable for part in parts for variable in part}


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
