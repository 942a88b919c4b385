"""Messages: a bound and good assignments for cores, whose variables depend on three or more others.

Costs are moved between variables and their pairs, which changes no sum, until the minima of each
part, taken alone, add up to as much as they can: that is a bound, and the minimum of its
part is a good choice. In sweeps to and fro each variable passes what it knows to those after it,
then to those before it: sequential tree-reweighted message passing (Kolmogorov 2006). The bound
does not fall; it is at most that of the linear program, at a small part of its time.

Variables whose earlier neighbours are all done take their turn together, as arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.plan.solving.factors import Factors, Scope, finite_spread
from tunefarm.compiler.plan.solving.problem import TOLERANCE, Costs

SWEEPS = 120
PATIENCE = 8
"""Sweeps after which too little was gained to go on."""
TOO_LITTLE = 0.01
"""The part of the gap between cost and bound."""

Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Turn:
    """Variables that take their turn together, none a neighbour of another."""

    nodes: Positions
    incoming: Positions  # the messages to the first of them, to the second, ...
    starts: Positions  # where in `incoming` those of each begin
    to_later: Positions  # pairs of which they are the first
    to_earlier: Positions  # pairs of which they are the second


@dataclass(frozen=True, slots=True)
class Assignment:
    """A candidate for each variable of a core, what they cost, and a bound of what any cost."""

    chosen: Mapping[int, int]
    cost: float  # infinite: a conflict
    bound: float  # infinite: there is none without a conflict


class Messages:
    """The messages of a core, its variables numbered by their order.

    Tables are padded to the most candidates of a variable; padding and conflicts cost more than any
    two assignments without them are apart, so that no infinite numbers are subtracted.
    """

    def __init__(self, core: Factors) -> None:
        self.core = core
        self.variables = sorted(core.sizes)
        at = {variable: node for node, variable in enumerate(self.variables)}
        self.conflict = 2 * finite_spread(list(core.tables.values())) or 1.0
        self.least = core.constant  # the minimum of each table, added
        most = max(core.sizes.values())
        pairs = sorted(scope for scope in core.tables if len(scope) == 2)
        self.own: Costs = np.stack([self._padded((each,), most) for each in self.variables])
        self.pairs: Costs = np.stack([self._padded(scope, most) for scope in pairs])
        self.first = np.array([at[scope[0]] for scope in pairs], dtype=np.intp)
        self.second = np.array([at[scope[1]] for scope in pairs], dtype=np.intp)
        # To the second of each pair, then to the first of each.
        self.messages: Costs = np.zeros((2 * len(pairs), most))
        self.turns = self._turns()
        before = np.bincount(self.second, minlength=len(at))
        after = np.bincount(self.first, minlength=len(at))
        self.share: Costs = 1.0 / np.maximum(before, after)
        self.kept: Costs = 1.0 - self.share * before
        self.bound = -np.inf  # of the last sweep
        self._belief_of: Costs = np.zeros_like(self.own)

    def run(self) -> Assignment:
        """Sweep until the bound is the cost, or hardly rises any more."""
        best: Positions = np.zeros(len(self.variables), dtype=np.intp)
        cost, bound, last = np.inf, -np.inf, -np.inf
        for sweep in range(SWEEPS):
            self._forwards()
            self.bound = self._backwards()
            bound = max(bound, self.bound)
            if sweep < PATIENCE or sweep % 2:  # it takes longer than a sweep
                found = self._improved(self._rounded())
                found_cost = self._cost(found)
                if found_cost < cost:
                    best, cost = found, found_cost
            if cost - bound <= 0.1 * TOLERANCE * max(abs(cost), abs(bound)):
                break
            if sweep % PATIENCE == PATIENCE - 1:
                if bound - last <= TOO_LITTLE * (cost - bound):
                    break
                last = bound
        chosen = {
            # Padding is chosen where all is in conflict, so that anything will do.
            variable: min(int(choice), self.core.sizes[variable] - 1)
            for variable, choice in zip(self.variables, best, strict=True)
        }
        # Without a conflict it would be at most half of one above the minimum.
        contradicts = bound > self.least + 0.75 * self.conflict
        return Assignment(chosen, self.core.cost_of(chosen), np.inf if contradicts else bound)

    # --- what is known of candidates --------------------------------------------------------------

    def regrets(self) -> Mapping[Scope, Costs]:
        """What an assignment with a candidate, or with two, costs more than the bound, at least.

        By variable, and by pair [candidate of its first, of its second]. The bound is a sum of
        minimum costs, and each part of it that a candidate belongs to rises by its own.
        """
        pairs = len(self.pairs)
        belief = self._all_beliefs()
        both = self.pairs - self.messages[pairs:, :, None] - self.messages[:pairs, None, :]
        both += (self.share[self.second, None] * belief[self.second])[:, None, :]
        both -= both.min(axis=(1, 2), keepdims=True)
        rows, columns = both.min(axis=2), both.min(axis=1)
        single = self.kept[:, None] * (belief - belief.min(axis=1, keepdims=True))
        np.add.at(single, self.first, rows)
        np.add.at(single, self.second, columns)
        both += (single[self.first] - rows)[:, :, None]
        both += (single[self.second] - columns)[:, None, :]
        found: dict[Scope, Costs] = {
            (variable,): single[node] for node, variable in enumerate(self.variables)
        }
        for pair, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            found[self.variables[first], self.variables[second]] = both[pair]
        return {scope: self._possible(scope, table) for scope, table in found.items()}

    def _possible(self, scope: Scope, padded: Costs) -> Costs:
        table = self.core.tables.get(scope)
        cut = padded[tuple(slice(self.core.sizes[each]) for each in scope)]
        return cut if table is None else np.where(np.isinf(table), np.inf, cut)

    # --- tables ---------------------------------------------------------------------------------

    def _padded(self, scope: Scope, most: int) -> Costs:
        """The costs of a variable or pair; padding of variables is a conflict."""
        sizes = [self.core.sizes[each] for each in scope]
        table = self.core.tables.get(scope, np.zeros(sizes))
        finite = np.isfinite(table)
        low = float(table[finite].min()) if finite.any() else 0.0
        self.least += low
        padded = np.full([most] * len(scope), low + (self.conflict if len(scope) == 1 else 0))
        padded[tuple(map(slice, sizes))] = np.where(finite, table, low + self.conflict)
        return padded

    def _turns(self) -> list[_Turn]:
        level = np.zeros(len(self.variables), dtype=np.intp)
        incoming: list[list[int]] = [[] for _ in self.variables]
        for pair, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            level[second] = max(level[second], level[first] + 1)
            incoming[second].append(pair)
            incoming[first].append(len(self.first) + pair)
        turns = []
        for each in range(int(level.max()) + 1):
            nodes = np.flatnonzero(level == each)
            counts = [len(incoming[node]) for node in nodes]
            turns.append(
                _Turn(
                    nodes,
                    np.array([sent for node in nodes for sent in incoming[node]], dtype=np.intp),
                    np.cumsum([0, *counts[:-1]]),
                    np.flatnonzero(level[self.first] == each),
                    np.flatnonzero(level[self.second] == each),
                )
            )
        return turns

    def _belief(self, turn: _Turn, incoming: Costs) -> Costs:
        """What is known of the candidates of those whose turn it is, in an array of all."""
        text = np.add.reduceat(incoming[turn.incoming], turn.starts, axis=0)
        self._belief_of[turn.nodes] = self.own[turn.nodes] + text
        return self._belief_of

    def _all_beliefs(self) -> Costs:
        for turn in self.turns:
            self._belief(turn, self.messages)
        return self._belief_of

    def _cost(self, chosen: Positions) -> float:
        own = self.own[np.arange(len(chosen)), chosen].sum()
        pairs = np.arange(len(self.pairs)), chosen[self.first], chosen[self.second]
        return self.core.constant + float(own + self.pairs[pairs].sum())

    # --- sweeps -----------------------------------------------------------------------------------

    def _forwards(self) -> None:
        pairs = len(self.pairs)
        for turn in self.turns:
            if not turn.to_later.size:
                continue
            belief = self._belief(turn, self.messages)
            of = self.first[turn.to_later]
            text = self.share[of, None] * belief[of] - self.messages[pairs + turn.to_later]
            sent = (text[:, :, None] + self.pairs[turn.to_later]).min(axis=1)
            self.messages[turn.to_later] = sent - sent.min(axis=1, keepdims=True)

    def _backwards(self) -> float:
        """Returns the bound: what each variable keeps, and the minimum of each pair."""
        pairs, bound = len(self.pairs), self.core.constant
        for turn in reversed(self.turns):
            belief = self._belief(turn, self.messages)
            bound += float((self.kept[turn.nodes] * belief[turn.nodes].min(axis=1)).sum())
            if not turn.to_earlier.size:
                continue
            of = self.second[turn.to_earlier]
            text = self.share[of, None] * belief[of] - self.messages[turn.to_earlier]
            sent = (text[:, None, :] + self.pairs[turn.to_earlier]).min(axis=2)
            least = sent.min(axis=1, keepdims=True)
            self.messages[pairs + turn.to_earlier] = sent - least
            bound += float(least.sum())
        return bound

    def _rounded(self) -> Positions:
        """In order, the best candidate given those before and what is said of those after."""
        incoming = self.messages.copy()
        return self._chosen(incoming, np.zeros(len(self.variables), dtype=np.intp), both=False)

    def _improved(self, chosen: Positions) -> Positions:
        """Give each variable the best candidate for all its neighbours', until none changes."""
        pairs = np.arange(len(self.pairs))
        for _ in range(PATIENCE):
            given = self.pairs[pairs, chosen[self.first]], self.pairs[pairs, :, chosen[self.second]]
            changed = self._chosen(np.concatenate(given), chosen, both=True)
            if (changed == chosen).all():
                break
            chosen = changed
        return chosen

    def _chosen(self, incoming: Costs, chosen: Positions, both: bool) -> Positions:
        """One pass in order; those who have chosen tell those after them, or all neighbours."""
        chosen, pairs = chosen.copy(), len(self.pairs)
        for turn in self.turns:
            chosen[turn.nodes] = self._belief(turn, incoming)[turn.nodes].argmin(axis=1)
            later = turn.to_later
            incoming[later] = self.pairs[later, chosen[self.first[later]]]
            if both:
                earlier = turn.to_earlier
                incoming[pairs + earlier] = self.pairs[earlier, :, chosen[self.second[earlier]]]
        return chosen
