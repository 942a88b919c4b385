"""The integer program of a pairwise problem, for HiGHS by way of SciPy.

One variable of 0 or 1 for each candidate, of which each choice has one; one for both candidates of
a pair, in [0, 1], whose sums over either side are the candidates of the other (the local polytope:
where the choices are whole numbers these are too). What is impossible has an upper bound of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.plan.solving.factors import Factors, Scope
from tunefarm.compiler.plan.solving.messages import Assignment
from tunefarm.compiler.plan.solving.problem import Costs

MOST_ENTRIES = 400_000
"""Of costs: a larger program would not get beyond its first relaxation in a few seconds."""
MOST_NODES = 20_000
"""Of the tree of the search, so that the end does not depend on the clock alone."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Where the candidates of variables, then the entries of pairs, begin in the program."""

    variables: dict[int, int]
    pairs: dict[Scope, int]
    entries: int


def solve_program(factors: Factors, seconds: float) -> Assignment | None:
    """The best assignment of factors of one or two variables, as far as it was found in time.

    None: SciPy is missing, the program is too large, or time was too short for any assignment. One
    with an infinite bound says that there is none, and has no candidates.
    """
    try:
        from scipy.optimize import milp  # heavy, and rarely needed
    except ImportError:
        return None
    parts = _parts(factors)
    if parts.entries > MOST_ENTRIES or seconds <= 0:
        return None
    costs, upper, base = _costs(factors, parts)
    scale = 1e3 / (costs.max() or 1.0)  # tolerances of HiGHS are absolute
    result = milp(
        costs * scale,
        integrality=(np.arange(parts.entries) < sum(factors.sizes.values())).astype(int),
        bounds=_bounds(upper),
        constraints=_constraints(factors, parts),
        options={"time_limit": seconds, "mip_rel_gap": 0.0, "node_limit": MOST_NODES},
    )
    if result.status == 2:
        return Assignment({}, np.inf, np.inf)
    if result.x is None:
        return None
    chosen = {
        variable: int(result.x[start : start + factors.sizes[variable]].argmax())
        for variable, start in parts.variables.items()
    }
    cost = factors.cost_of(chosen)
    bound = cost if result.status == 0 else base + float(result.mip_dual_bound) / scale
    return Assignment(chosen, cost, min(bound, cost))


def _parts(factors: Factors) -> _Parts:
    entries = 0
    variables: dict[int, int] = {}
    pairs: dict[Scope, int] = {}
    for variable in sorted(factors.sizes):
        variables[variable] = entries
        entries += factors.sizes[variable]
    for scope in sorted(scope for scope in factors.tables if len(scope) == 2):
        pairs[scope] = entries
        entries += factors.tables[scope].size
    return _Parts(variables, pairs, entries)


def _costs(factors: Factors, parts: _Parts) -> tuple[Costs, Costs, float]:
    """What entries cost above the minimum of their table, their upper bounds, and all
    minima."""
    costs, upper, base = np.zeros(parts.entries), np.ones(parts.entries), factors.constant
    for scope, table in factors.tables.items():
        start = parts.pairs[scope] if len(scope) == 2 else parts.variables[scope[0]]
        numbers = table.ravel()
        finite = np.isfinite(numbers)
        low = float(numbers[finite].min()) if finite.any() else 0.0
        costs[start : start + table.size] = np.where(finite, numbers - low, 0.0)
        upper[start : start + table.size] = finite
        base += low
    return costs, upper, base


def _bounds(upper: Costs) -> Any:
    from scipy.optimize import Bounds

    return Bounds(0.0, upper)


def _constraints(factors: Factors, parts: _Parts) -> Any:
    """One candidate of each variable; the sums of a pair's entries are its candidates'."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import coo_array

    rows: list[npt.NDArray[np.intp]] = []
    columns: list[npt.NDArray[np.intp]] = []
    values: list[Costs] = []
    right: list[Costs] = []
    count = 0

    def equal(ones: npt.NDArray[np.intp], less: npt.NDArray[np.intp], to: float) -> None:
        """For each row of `ones`: the sum of these entries, without one of `less`, is `to`."""
        nonlocal count
        lines = np.arange(count, count + len(ones))
        rows.extend((np.repeat(lines, ones.shape[1]), lines[: len(less)]))
        columns.extend((ones.ravel(), less))
        values.extend((np.ones(ones.size), -np.ones(len(less))))
        right.append(np.full(len(ones), to))
        count += len(ones)

    none = np.zeros(0, dtype=np.intp)
    of = {
        variable: np.arange(start, start + factors.sizes[variable])
        for variable, start in parts.variables.items()
    }
    for own in of.values():
        equal(own[None], none, 1.0)
    for (first, second), start in parts.pairs.items():
        entries = start + np.arange(of[first].size * of[second].size)
        table = entries.reshape(of[first].size, of[second].size)
        equal(table, of[first], 0.0)
        equal(table.T, of[second], 0.0)
    where = np.concatenate(rows), np.concatenate(columns)
    matrix = coo_array((np.concatenate(values), where), shape=(count, parts.entries))
    sums = np.concatenate(right)
    return LinearConstraint(matrix.tocsr(), sums, sums)
