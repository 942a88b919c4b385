"""Plans of a model's graph in the database: what a job chose, and how a build applies it.

A plan that no longer fits its model is said so of, and the rules decide: so is one that another
version of the compiler was asked for, since it may mean something else to this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunefarm import compiler
from tunefarm.compiler.errors import LimitError, PlanError
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.target import Target
from tunefarm.configs.settings import Settings
from tunefarm.tuner.building.record import keep_plan
from tunefarm.tuner.records.graph_choice import GraphChoice

if TYPE_CHECKING:
    from tunefarm.compiler.pipeline import Compiled
    from tunefarm.db.records import PlanRecord
    from tunefarm.db.store import Store

BY_GRAPH = " by graph"
"""End of the name of the precision where a plan of a graph is recorded: no choice of precisions has
such a name, and no plan of sizes."""


@dataclass(frozen=True, slots=True)
class PlanToApply:
    """The plan that a build is to apply, None where the rules decide, and what is to be said.

    `by_estimates` has estimates decide next to the rules, for builds that take no records.
    """

    choice: GraphChoice | None = None
    notes: tuple[str, ...] = ()
    by_estimates: bool = False

    @property
    def plan(self) -> GraphPlan:
        """Its decisions; none where the rules decide."""
        return DEFAULT_PLAN if self.choice is None else self.choice.plan

    def compile(
        self, compile: Callable[[GraphPlan | None], Compiled]
    ) -> tuple[Compiled, PlanToApply]:
        """What `compile` makes under the plan, or under the rules where that does not fit the model
        or the memory that is allowed; and what was applied."""
        if self.plan == DEFAULT_PLAN:
            return compile(None if self.by_estimates else DEFAULT_PLAN), self
        try:
            return compile(self.plan), self
        except PlanError as error:
            note = f"the recorded plan does not fit the model, the rules decide: {error.message}"
        except LimitError as error:
            note = f"the recorded plan goes beyond the limits, the rules decide: {error.message}"
        return compile(DEFAULT_PLAN), PlanToApply(None, (*self.notes, note))


def plan_to_apply(
    store: Store | None,
    model_hash: str,
    settings: Settings,
    target: Target,
    *,
    accept_nominees: bool = False,
) -> PlanToApply:
    """What was last chosen for a model, by its graph as it was imported, under these settings.

    Nothing where they have the rules decide; without a store of the user's, estimates. One that was
    chosen on another CPU, or comes from elsewhere, only with `accept_nominees`.
    """
    if not settings.searches_plans:
        return PlanToApply()
    if store is None:
        return PlanToApply(by_estimates=True)
    from tunefarm.db import model_queries
    from tunefarm.tuner.records.applicable_records import applicable_plan

    threads, kind = settings.compile.threads, kind_of_plan(settings)
    standing = applicable_plan(store, model_hash, target, threads, kind)
    found = standing.taken(accept_nominees)
    if found is None and standing.nominee is not None:
        nominee = standing.nominee
        subject = f"the recorded plan ({nominee.plan.get('described', nominee.id)}) was"
        return PlanToApply(None, (nominee_note(nominee, subject, "the rules decide", "plans"),))
    if found is None:
        other = model_queries.newest_plan(store, model_hash, target.key, threads, kind, None)
        if other is None or not other.plan.get("decisions"):
            return PlanToApply(by_estimates=store.is_shipped)
        note = (
            f"the recorded plan ({other.plan.get('described', other.id)}) is of version "
            f"{other.compiler_version} of the compiler, this is {compiler.VERSION}: the rules "
            "decide"
        )
        return PlanToApply(None, (note,))
    try:
        choice = GraphChoice.from_json(found.plan)
    except PlanError as error:
        note = f"the recorded plan {found.id} cannot be read, the rules decide: {error.message}"
        return PlanToApply(None, (note,))
    left = len(found.plan["decisions"]) - len(choice.plan.decisions)
    note = (
        f"{left} of the decisions of the recorded plan {found.id} are of a kind that plans do not "
        "have any more: the rules decide there"
    )
    return PlanToApply(None if choice.plan == DEFAULT_PLAN else choice, (note,) if left else ())


def nominee_note(plan: PlanRecord, subject: str, instead: str, measured: str) -> str:
    """What a build says of a plan that was not confirmed here: what it does instead, and what to do
    for the plan. `subject` goes with the verb, `measured` is what such plans are called.
    """
    cpu = f" chosen on {plan.cpu} and" if plan.cpu else ""
    return (
        f"{subject}{cpu} not confirmed on this CPU: {instead}; tune MODEL measures {measured}, "
        "--accept-nominees applies them as they are"
    )


def record_plan(
    store: Store,
    choice: GraphChoice,
    name: str,
    model_hash: str,
    settings: Settings,
    target: Target,
) -> None:
    """Keep what was chosen for a model, by its graph as it was imported, under these settings.

    Raises DatabaseError.
    """
    kind = kind_of_plan(settings)
    keep_plan(store, kind, choice.to_json(), name, model_hash, settings, target)


def kind_of_plan(settings: Settings) -> str:
    """What plans of graphs are recorded under."""
    return f"{settings.compile.numerics}{BY_GRAPH}"
