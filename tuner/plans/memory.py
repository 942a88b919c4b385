"""Plans that need little memory: for models whose values need more than is allowed.

What is left of the rules is taken back step by step: each time the decision that frees most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.errors import LimitError
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Decision,
    GraphPlan,
    Layout,
)
from tunefarm.tuner.plans.kinds import local_decisions
from tunefarm.tuner.plans.programs import PlannedProgram, Programs


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
