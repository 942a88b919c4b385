"""Whole models decide about plans: what is proposed runs in turn with the rules' build.

First all that is proposed together; if that is not faster beyond doubt, its kinds one by one, and
of those that are the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.tuner.confirm.latency import SLOWER, ModelLatency
from tunefarm.tuner.confirm.whole_model import CompareSpecs
from tunefarm.tuner.plans.search import Proposal, Proposals
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.reports.gains import UNCHANGED

Build: TypeAlias = Callable[[GraphPlan], ExecutableSpec]
"""The model under a plan, from the records there are."""
Describe: TypeAlias = Callable[[GraphPlan], str]
"""The plan in a few words."""

GAIN = SLOWER
"""What a plan must gain beyond doubt: as much as a model must lose to be refused."""


def is_faster(latency: ModelLatency) -> bool:
    """Whether the second of two models, the plan's, is faster than the first beyond doubt."""
    return latency.compared.a_is_faster(GAIN)


def confirmed_choice(choice: GraphChoice, latency: ModelLatency) -> GraphChoice:
    """The choice of a plan whose model was the second one of these latencies, the rules' first."""
    return replace(
        choice,
        speedup=1.0 / latency.ratio,
        low=1.0 / latency.high,
        high=1.0 / latency.low,
        seconds=latency.tuned,
    )


class ConfirmPlans:
    """Builds what is proposed and compares it with the rules' build, while there is time."""

    def __init__(
        self,
        build: Build,
        compare: CompareSpecs,
        describe: Describe,
        notify: Callable[[str], None],
        is_late: Callable[[], bool] = lambda: False,
        before: GraphPlan = DEFAULT_PLAN,
    ) -> None:
        """What is proposed has to be faster than the model under the plan `before`."""
        self.build, self.compare = build, compare
        self.describe, self.notify = describe, notify
        self._is_late, self.before = is_late, before
        self._former: ExecutableSpec | None = None

    def best(self, proposals: Proposals) -> GraphChoice | None:
        """What was confirmed as faster; None if nothing was."""
        if proposals.joint is None:
            return None
        found = self._in_time(proposals.joint)
        if found is not None:
            return found
        singles = [item for item in proposals.single if item.plan != proposals.joint.plan]
        confirmed = [choice for item in singles if (choice := self._in_time(item)) is not None]
        return max(confirmed, key=lambda choice: choice.speedup or 0.0, default=None)

    def _in_time(self, proposal: Proposal) -> GraphChoice | None:
        if self._is_late():
            return None
        return self.confirmed(proposal.plan, proposal.arena_bytes)

    def confirmed(self, plan: GraphPlan, arena_bytes: int) -> GraphChoice | None:
        """The choice of a plan that is faster beyond doubt; None where it is not."""
        name = self.describe(plan)
        self.notify(f"measuring the whole model with {name}")
        try:
            if self._former is None:
                self._former = self.build(self.before)
            latency = self.compare((self._former, self.build(plan)))
        except TunefarmError as error:
            self.notify(f"plan: {name} is not taken: {error.message}")
            return None
        if latency.is_unchanged:
            self.notify(f"plan: {name} is the build of {self._rival}, {UNCHANGED}")
            return None
        if not is_faster(latency):
            bounds = f"{1 / latency.high:.2f}x to {1 / latency.low:.2f}x"
            times = f"{1 / latency.ratio:.2f}x as fast, {bounds}"
            self.notify(f"plan: {name} is not faster than {self._rival} ({times})")
            return None
        note = f"{name}: {_percent(latency)} faster than {self._rival}, confirmed"
        notes = () if self.before == DEFAULT_PLAN else (note,)
        choice = GraphChoice(plan, name, arena_bytes=arena_bytes, notes=notes)
        return confirmed_choice(choice, latency)

    @property
    def _rival(self) -> str:
        return "the rules" if self.before == DEFAULT_PLAN else "the plan before"


def _percent(latency: ModelLatency) -> str:
    return f"{100.0 * (1.0 / latency.ratio - 1.0):.0f} %"
