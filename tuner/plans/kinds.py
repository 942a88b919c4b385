"""The kinds of decisions that a search looks at, each a problem on top of what was decided before.

Where the values of a model need more memory than is allowed, what is left of the rules is taken
back step by step: each time the decision that frees most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tunefarm.compiler.errors import LimitError
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.choices.estimated_plan import estimated_plan
from tunefarm.compiler.plan.choices.graph_sites import GraphSites
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Decision,
    GraphPlan,
    Layout,
)
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.tuner.plans.problems import Kind, LocalParts, parts_of
from tunefarm.tuner.plans.programs import PlannedProgram, Programs
from tunefarm.tuner.plans.search import MakeProblem

Found: TypeAlias = Iterable[tuple[Decision, ...]]
FindDecisions: TypeAlias = Callable[[GraphSites], Found]
"""What could be decided of one kind, each by itself on top of the plan that the sites are of."""


def local_kind(
    kind: Kind, find: FindDecisions, is_late: Callable[[], bool] = lambda: False
) -> MakeProblem:
    """A kind whose decisions can be taken one by one."""

    def make(programs: Programs, before: GraphPlan) -> LocalParts:
        found = find(programs.sites(before))
        return LocalParts(kind, parts_of(programs, before, found, is_late))

    return make


def by_estimates(programs: Programs, base: GraphPlan, threads: int) -> list[GraphPlan]:
    """The plan with what an untuned build would merge and chain, on top of the base."""
    spaces = SpaceCache(programs.target, threads, programs.numerics)
    plan = estimated_plan(programs.graph, spaces, ResourceBudget(programs.limits), base)
    return [plan] if plan != base else []


def kinds_of_plans(is_late: Callable[[], bool]) -> list[MakeProblem]:
    """All kinds, in the order in which they are decided."""
    return [
        local_kind(Kind.CHAINS, _chains, is_late),
        local_kind(Kind.MERGES, _merges, is_late),
    ]


def local_decisions(programs: Programs, plan: GraphPlan) -> list[tuple[Decision, ...]]:
    """All that could be decided one by one on top of a plan."""
    found = programs.sites(plan)
    return [*_chains(found), *_merges(found)]


def _chains(found: GraphSites) -> Found:
    return (item.chains for item in sorted(found.chains, key=lambda item: -item.saved_bytes))


def _merges(found: GraphSites) -> Found:
    return ((decision,) for decision in found.merges)


def within_memory(
    programs: Programs, most_bytes: int, is_late: Callable[[], bool] = lambda: False
) -> GraphPlan:
    """A plan whose arena needs no more than that; the rules where these do.

    Raises LimitError if none was found, which names the minimum.
    """
    least = programs.of(DEFAULT_PLAN)
    while least.arena_bytes > most_bytes:
        smaller = _smaller(programs, least, is_late)
        if smaller is None:
            raise LimitError(
                f"the values between kernels take {least.arena_bytes} bytes at least, and "
                f"{most_bytes} are allowed",
                hint="limits.memory, --max-memory; a smaller batch or image needs less",
            )
        least = smaller
    return least.plan


def _smaller(
    programs: Programs, before: PlannedProgram, is_late: Callable[[], bool]
) -> PlannedProgram | None:
    """The smallest program that one decision more leads to, or all images in rows; None if none
    is smaller."""
    best: PlannedProgram | None = None
    for decisions in _candidates(programs, before.plan):
        program = None if is_late() else programs.fitting(before.plan.with_decisions(*decisions))
        least = before if best is None else best
        if program is not None and program.arena_bytes < least.arena_bytes:
            best = program
    return best


def _candidates(programs: Programs, plan: GraphPlan) -> Sequence[tuple[Decision, ...]]:
    graph = programs.sites(plan).planned
    images = [node.output for node in graph.nodes if len(graph.types[node.output].shape) == 4]
    plain = tuple(Layout(name, PLAIN) for name in images)
    own = [(decision,) for decision in plan.decisions]
    return [plain, *(item for item in local_decisions(programs, plan) if item not in own)]
