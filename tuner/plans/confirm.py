"""Whole models decide about plans: what is proposed runs in turn with the rules' build.

First all that is proposed together; if that is not faster beyond doubt, its kinds one by one, and
of those that are the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from compiler.errors import TunefarmError
from compiler.plan.graph_plan import RULES, GraphPlan
from compiler.runtime.executable_spec import ExecutableSpec
from measure.compare import Comparison
from tuner.confirm.latency import SLOWER, ModelLatency
from tuner.confirm.whole_model import CompareSpecs
from tuner.plans.search import Proposal, Proposals
from tuner.records.graph_choice import GraphChoice

Build: TypeAlias = Callable[[GraphPlan], ExecutableSpec]
"""The model under a plan, from the records there are."""
Describe: TypeAlias = Callable[[GraphPlan], str]
"""The plan in a few words."""

GAIN = SLOWER
"""What a plan must gain beyond doubt: as much as a model must lose to be refused."""


def is_faster(latency: ModelLatency) -> bool:
    """Whether the second of two models, the plan's, is faster than the first beyond doubt."""
    return Comparison(latency.ratio, latency.low, latency.high, 0).a_is_faster(GAIN)


def confirmed_choice(
    plan: GraphPlan,
    latency: ModelLatency,
    described: str,
    arena_bytes: int | None,
    notes: tuple[str, ...] = (),
) -> GraphChoice:
    """The choice of a plan whose model was the second one of these latencies, the rules' first."""
    return GraphChoice(
        plan,
        described,
        speedup=1.0 / latency.ratio,
        low=1.0 / latency.high,
        high=1.0 / latency.low,
        seconds=latency.tuned,
        arena_bytes=arena_bytes,
        notes=notes,
    )


class ConfirmPlans:
    """Builds what is proposed and compares it with the rules' build, while there is time."""

    def __init__(
        self,
        build: Build,
        compare: CompareSpecs,
        describe: Describe,
        tell: Callable[[str], None],
        is_late: Callable[[], bool] = lambda: False,
        before: GraphPlan = RULES,
    ) -> None:
        """What is proposed has to be faster than the model under the plan `before`."""
        self._build, self._compare = build, compare
        self._describe, self._tell = describe, tell
        self._is_late, self._before = is_late, before
        self._former: ExecutableSpec | None = None

    def best(self, proposals: Proposals) -> GraphChoice | None:
        """What was confirmed as faster; None if nothing was."""
        if proposals.joint is None:
            return None
        found = self._confirmed(proposals.joint)
        if found is not None:
            decided = set(proposals.joint.plan.decisions)
            parts = [item for item in proposals.single if set(item.plan.decisions) < decided]
            return replace(found, notes=(*found.notes, *map(self._told, parts)))
        singles = [item for item in proposals.single if item.plan != proposals.joint.plan]
        confirmed = [choice for item in singles if (choice := self._confirmed(item)) is not None]
        return max(confirmed, key=lambda choice: choice.speedup or 0.0, default=None)

    def _told(self, part: Proposal) -> str:
        name = self._describe(part.plan)
        return f"{name}: {100.0 * part.gain:.0f} % less time by its kernels alone"

    def _confirmed(self, proposal: Proposal) -> GraphChoice | None:
        if self._is_late():
            return None
        name = self._describe(proposal.plan)
        self._tell(f"measuring the whole model with {name}")
        try:
            if self._former is None:
                self._former = self._build(self._before)
            latency = self._compare((self._former, self._build(proposal.plan)))
        except TunefarmError as error:
            self._tell(f"plan: {name} is not taken: {error.message}")
            return None
        if not is_faster(latency):
            times = f"{1 / latency.ratio:.2f}x, {1 / latency.high:.2f}-{1 / latency.low:.2f}"
            self._tell(f"plan: {name} is not faster than {self._rival} ({times})")
            return None
        note = f"{name}: {_percent(latency)} faster than {self._rival}, confirmed"
        return confirmed_choice(proposal.plan, latency, name, proposal.arena_bytes, (note,))

    @property
    def _rival(self) -> str:
        return "the rules" if self._before == RULES else "the plan before"


def _percent(latency: ModelLatency) -> str:
    return f"{100.0 * (1.0 / latency.ratio - 1.0):.0f} %"
