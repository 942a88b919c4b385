"""What could be decided of a model's graph, what each choice costs, and what is chosen, to be read.

# chain              candidates (us)                 choice
conv_0 (6 alike)     apart ~12.1   chained ~13.9     apart
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.choices.graph_sites import GraphSites
from tunefarm.compiler.plan.choices.plan_costs import PlanCosts
from tunefarm.compiler.plan.decisions.graph_plan import (
    Chain,
    Decision,
    GraphPlan,
    Merged,
)
from tunefarm.compiler.plan.fusion.chain_candidates import ChainCandidate

_MICRO = 1e6
_WIDEST = 56
"""Characters of a place; longer names of values are cut in the middle."""
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the ways to have it; its seconds are None where it is not possible."""

    name: str
    cost: float | None
    chosen: bool = False

    def __str__(self) -> str:
        if self.cost is None:
            return self.name
        return f"{self.name} ~{self.cost * _MICRO:.1f}"


@dataclass(frozen=True, slots=True)
class Question:
    """Something to be decided: at these `places` alike, each by one of the choices."""

    kind: str
    places: tuple[str, ...]
    choices: tuple[Choice, ...]

    @property
    def place(self) -> str:
        """The first of the places, and how many there are."""
        others = f" ({len(self.places)} alike)" if len(self.places) > 1 else ""
        first = self.places[0]
        if len(first) > _WIDEST:
            first = f"{first[: _WIDEST // 2]}…{first[-_WIDEST // 2 :]}"
        return f"{first}{others}"

    @property
    def chosen(self) -> str:
        """The name of the choice that is made."""
        return next((choice.name for choice in self.choices if choice.chosen), "")


@dataclass(frozen=True, slots=True)
class PlanDescription:
    """A plan with all that it could have decided otherwise."""

    plan: GraphPlan
    total: float
    questions: tuple[Question, ...] = field(default=())

    def __str__(self) -> str:
        lines = [f"# the plan: ~{self.total * _MICRO:.1f} us of kernels", str(self.plan)]
        for kind in dict.fromkeys(question.kind for question in self.questions):
            asked = [question for question in self.questions if question.kind == kind]
            lines += ["", *_table(kind, asked)]
        return "\n".join(lines)


def describe_plan(costs: PlanCosts, sites: GraphSites, plan: GraphPlan) -> PlanDescription:
    """The plan, and what each choice of chains and merges costs.

    `sites` are those of the plan. Raises PlanError for a plan that does not fit.
    """
    chains, merges = chain_questions(costs, sites, plan), merge_questions(costs, sites, plan)
    return PlanDescription(plan, costs.total(plan), (*chains, *merges))


def chain_questions(costs: PlanCosts, sites: GraphSites, plan: GraphPlan) -> Iterator[Question]:
    """Whether contractions and pools are computed in their readers' kernels, tile by tile."""
    decided = set(plan.of(Chain))
    types = sites.planned.types

    def look(chain: ChainCandidate) -> object:
        values = tuple(str(types.get(item.value)) for item in chain.chains)
        return values, chain.saved_bytes, decided.issuperset(chain.chains)

    for alike in _alike(sites.chains, look):
        is_chained = decided.issuperset(alike[0].chains)
        places = [" ".join(item.value for item in chain.chains) for chain in alike]
        both = _both(costs, plan, is_chained, *alike[0].chains)
        yield _question("chain", places, ("apart", "chained"), is_chained, both)


def merge_questions(costs: PlanCosts, sites: GraphSites, plan: GraphPlan) -> Iterator[Question]:
    """Whether contractions that read the same data run as one."""
    decided = set(plan.of(Merged))
    types = sites.planned.types

    def look(merge: Merged) -> object:
        return tuple(str(types.get(value)) for value in merge.values), merge in decided

    candidates = dict.fromkeys((*sites.merges, *plan.of(Merged)))
    for alike in _alike(tuple(candidates), look):
        is_merged = alike[0] in decided
        places = [" ".join(merge.values) for merge in alike]
        both = _both(costs, plan, is_merged, alike[0])
        yield _question("merge", places, ("apart", "merged"), is_merged, both)


def _both(
    costs: PlanCosts, plan: GraphPlan, decided: bool, *decisions: Decision
) -> tuple[float | None, float | None]:
    """What differs without and with decisions; nothing of those that do not fit."""
    others = tuple(item for item in plan.decisions if item not in decisions)
    try:
        return costs.differing(GraphPlan(others) if decided else plan, *decisions)
    except PlanError:
        return None, None


def _question(
    kind: str,
    places: Sequence[str],
    names: tuple[str, str],
    decided: bool,
    both: tuple[float | None, float | None],
) -> Question:
    choices = tuple(
        Choice(name, cost, chosen=chosen)
        for name, cost, chosen in zip(names, both, (not decided, decided), strict=True)
    )
    return Question(kind, tuple(places), choices)


def _alike(items: Sequence[_Item], look: Callable[[_Item], object]) -> Iterator[list[_Item]]:
    """Those that look the same together, in the order of the first of each."""
    found: dict[object, list[_Item]] = {}
    for item in items:
        found.setdefault(look(item), []).append(item)
    yield from found.values()


def _table(kind: str, questions: Sequence[Question]) -> Iterator[str]:
    """The questions of a kind in columns: the place, each of its candidates, and the choice."""
    most = max(len(question.choices) for question in questions)
    head = (f"# {kind}", "candidates (us)", *([""] * (most - 1)), "choice")
    rows = [head, *(_row(question, most) for question in questions)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        yield "   ".join(cells).rstrip()


def _row(question: Question, most: int) -> tuple[str, ...]:
    names = tuple(map(str, question.choices))
    return (question.place, *names, *([""] * (most - len(names))), question.chosen)
