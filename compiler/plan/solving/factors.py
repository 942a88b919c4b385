"""Factors: costs by the candidates of some variables each, whose sum is to be minimal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tunefarm.compiler.plan.solving.problem import ChoiceProblem, Costs

Scope = tuple[int, ...]
"""Variables of a factor in ascending order, one axis each."""


class Factors:
    """A sum of tables, each over the candidates of the variables of its scope, one for a scope.

    `sizes` are the numbers of candidates by variable; `constant` is the part of the sum that no
    choice changes.
    """

    __slots__ = ("_of", "constant", "sizes", "tables")

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self.sizes = dict(sizes)
        self.tables: dict[Scope, Costs] = {}
        self.constant = 0.0
        self._of: dict[int, dict[Scope, None]] = {variable: {} for variable in sizes}

    @staticmethod
    def of_problem(problem: ChoiceProblem) -> Factors:
        """The problem's costs, those of variables with one candidate as parts of the others'."""
        sizes = {at: costs.size for at, costs in enumerate(problem.costs) if costs.size > 1}
        factors = Factors(sizes)
        for at, costs in enumerate(problem.costs):
            factors.add((at,), costs)
        for scope, table in problem.pairs.items():
            factors.add(scope, table)
        return factors

    def add(self, scope: Scope, table: Costs) -> None:
        """Add a table; variables that are not there have one candidate and fall away."""
        present = tuple(variable for variable in scope if variable in self.sizes)
        if len(present) < len(scope):
            table = table.reshape([self.sizes[variable] for variable in present])
        if not present:
            self.constant += float(table)
        elif present in self.tables:
            self.tables[present] = self.tables[present] + table
        else:
            self.tables[present] = table
            for variable in present:
                self._of[variable][present] = None

    def take(self, variable: int, others: Scope) -> Costs:
        """The sum of all tables with a variable, [its candidates, those of each of `others`].

        They are here no more, nor is the variable.
        """
        scope = (variable, *others)
        total = np.zeros([self.sizes[each] for each in scope])
        for key in self._of.pop(variable):
            table = self.tables.pop(key)
            if key[0] != variable:
                table = np.moveaxis(table, key.index(variable), 0)
            if len(key) < len(scope):
                table = table.reshape([self.sizes[each] if each in key else 1 for each in scope])
            total += table
            for other in key:
                if other != variable:
                    del self._of[other][key]
        del self.sizes[variable]
        return total

    def neighbours(self) -> dict[int, set[int]]:
        """The variables that each one shares a table with."""
        found: dict[int, set[int]] = {variable: set() for variable in self.sizes}
        for scope in self.tables:
            for variable in scope:
                found[variable].update(scope)
        for variable, others in found.items():
            others.discard(variable)
        return found

    def of_variables(self, kept: Iterable[int]) -> Factors:
        """The tables of a part that shares none with the rest; its constant is 0."""
        part = Factors({variable: self.sizes[variable] for variable in kept})
        for variable in part.sizes:
            for scope in self._of[variable]:
                if scope[0] == variable:
                    part.add(scope, self.tables[scope])
        return part

    def cost_of(self, chosen: Mapping[int, int]) -> float:
        """The sum for one candidate of each variable."""
        return self.constant + sum(
            float(table[tuple(chosen[variable] for variable in scope)])
            for scope, table in self.tables.items()
        )


def components(neighbours: Mapping[int, set[int]]) -> list[list[int]]:
    """The connected parts of a graph, each in ascending order, by their smallest variable."""
    parts, seen = [], set[int]()
    for start in sorted(neighbours):
        if start in seen:
            continue
        seen.add(start)
        part = [start]
        for variable in part:
            new = neighbours[variable] - seen
            seen |= new
            part += sorted(new)
        parts.append(sorted(part))
    return parts


def finite_spread(tables: Sequence[Costs]) -> float:
    """How far the sums of finite costs can be apart, at most."""
    finite = (table[np.isfinite(table)] for table in tables)
    return float(sum(numbers.max() - numbers.min() for numbers in finite if numbers.size))
