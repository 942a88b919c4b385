"""Whole models decide about plans: what is proposed runs in turn with the rules' build.

First all that is proposed together; if that is not faster beyond doubt, its kinds one by one, and
of those that are the best. Then what each region gains: the model under the plan and under the plan
without the region.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.measure.compare import LogRatio, pooled
from tunefarm.tuner.confirm.latency import SLOWER, ModelLatency
from tunefarm.tuner.confirm.whole_model import CompareSpecs
from tunefarm.tuner.plans.model_values import without
from tunefarm.tuner.plans.search import Proposal, Proposals
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.plan_region import PlanRegion
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
    """The choice of a plan whose model was the second one of these latencies, the rules' first.

    A region that is all of the plan gains what that does.
    """
    speedup, low, high = 1.0 / latency.ratio, 1.0 / latency.high, 1.0 / latency.low
    regions = tuple(
        region.measured(speedup, low, high) if region.plan == choice.plan else region
        for region in choice.regions
    )
    return replace(
        choice, speedup=speedup, low=low, high=high, seconds=latency.tuned, regions=regions
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


MOST_REGIONS = 12
"""Regions that are measured alone, whatever time there is."""
REPEATS = 3
"""Times more that regions are measured which may gain something, or nothing."""
_NORMAL = 1.96  # half a 95 % interval in standard deviations


class ConfirmRegions:
    """Compares a plan with the plan without each of its regions, while there is time.

    A region that gains nothing worth having, or loses, is left out where the plan without it is not
    slower: simpler plans are better, and of many regions some seem good by luck. What each of
    several gains may be too little to be seen, though, and much together: so those that are to go
    are measured as a whole once more, and stay if the plan is slower without them. Where noise
    hides which it is they are measured again, and stay while that is in doubt.
    """

    def __init__(
        self,
        plans: ConfirmPlans,
        arena_of: Callable[[GraphPlan], int | None],
        is_late: Callable[[], bool] = lambda: False,
        is_over: Callable[[], bool] = lambda: False,
        base: GraphPlan = DEFAULT_PLAN,
    ) -> None:
        """Regions are on top of what `base` decides. Whole plans are compared as `plans` does.

        `arena_of` is the bytes between kernels under a plan; None where it does not fit the model,
        or the memory that is allowed. No region is measured when it `is_late`, and none is left out
        when it `is_over`.
        """
        self._plans, self._arena_of, self._base = plans, arena_of, base
        self._is_late, self._is_over = is_late, is_over
        self._whole: ExecutableSpec | None = None
        self._met: dict[GraphPlan, list[LogRatio]] = {}  # time with regions over that without
        self._known: dict[GraphPlan, PlanRegion] = {}  # those that might be left out

    def judged(self, choice: GraphChoice, regions: Sequence[PlanRegion]) -> GraphChoice:
        """The choice with what its regions gain, without those that gain nothing."""
        found: list[PlanRegion] = []
        for number, region in enumerate(regions):
            is_over = number >= MOST_REGIONS or self._is_late()
            found.append(region if is_over else self._measured(choice, region))
        choice = replace(choice, regions=tuple(found))
        doubtful = [region for region in found if region.is_measured and not region.gains]
        losers = [region for region in doubtful if region.high is not None and region.high < 1.0]
        shorter = self._left_out(choice, doubtful)
        if shorter is None and len(losers) < len(doubtful):
            shorter = self._left_out(choice, losers)
        judged = shorter or self._joined(choice, doubtful)
        return replace(judged, regions=tuple(map(self._latest, judged.regions)))

    def _measured(self, choice: GraphChoice, region: PlanRegion) -> PlanRegion:
        """The region with what it gains by all that was measured of it, this time and before; as it
        is where that cannot be measured."""
        rest = without(choice.plan, region.plan, self._base)
        known = choice.speedup, choice.low, choice.high
        if rest == self._base == self._plans.before and None not in known:
            return replace(region, speedup=known[0], low=known[1], high=known[2])
        if self._arena_of(rest) is None:
            return region
        self._plans.notify(f"measuring the whole model without {region.described}")
        try:
            if self._whole is None:
                self._whole = self._plans.build(choice.plan)
            found = self._plans.compare((self._plans.build(rest), self._whole))
        except TunefarmError as error:
            self._plans.notify(f"plan: not measured: {error.message}")
            return region
        if found.is_unchanged:
            return region.measured(1.0, 1.0, 1.0)
        met = self._met.setdefault(region.plan, [])
        met.append(_log_ratio(found))
        ratio = pooled(met)
        return region.measured(1.0 / ratio.ratio, 1.0 / ratio.high, 1.0 / ratio.low)

    def _decided(self, choice: GraphChoice, region: PlanRegion) -> PlanRegion:
        """The region, measured again until it is known whether it gains, while there is time."""
        for _ in range(REPEATS):
            if not _is_in_doubt(region) or self._is_over():
                break
            region = self._measured(choice, region)
        return region

    def _latest(self, region: PlanRegion) -> PlanRegion:
        """The region with all that is known of it by now."""
        return self._known.get(region.plan, region)

    def _left_out(self, choice: GraphChoice, regions: Sequence[PlanRegion]) -> GraphChoice | None:
        """The choice without these regions; None where it is or may be slower, or nothing would be
        left."""
        together = self._together(choice, regions)
        if together is None or not together.is_measured or self._is_over():
            return None
        if together.gains or _is_in_doubt(together):
            return None
        rest = without(choice.plan, together.plan, self._base)
        arena_bytes = self._arena_of(rest)
        confirmed = None if arena_bytes is None else self._plans.confirmed(rest, arena_bytes)
        if confirmed is None:
            return None
        notes = tuple(f"left out: {self._latest(region)}" for region in regions)
        for note in notes:
            self._plans.notify(f"plan: {note}")
        others = (region for region in choice.regions if region not in regions)
        kept = tuple(self._within(region, rest) for region in others)
        return replace(confirmed, regions=kept, notes=(*choice.notes, *notes))

    def _joined(self, choice: GraphChoice, doubtful: Sequence[PlanRegion]) -> GraphChoice:
        """The choice with regions that gain only together as one."""
        together = self._together(choice, doubtful)
        if len(doubtful) < 2 or together is None or not together.gains:
            return choice
        rest = (region for region in choice.regions if region not in doubtful)
        return replace(choice, regions=(together, *rest))

    def _together(self, choice: GraphChoice, regions: Sequence[PlanRegion]) -> PlanRegion | None:
        """The regions as one, with what they gain together; None where they are the whole plan."""
        joint = GraphPlan(tuple({item for region in regions for item in region.plan.decisions}))
        if not regions or without(choice.plan, joint, self._base) == self._base:
            return None
        if joint not in self._known:
            if self._is_over():
                return None
            region = regions[0]
            if len(regions) > 1:
                expected = math.fsum(region.expected for region in regions)
                region = PlanRegion(joint, self._plans.describe(joint), "without them", expected)
                region = self._measured(choice, region)
            self._known[joint] = self._decided(choice, region)
        return self._known[joint]

    def _within(self, region: PlanRegion, plan: GraphPlan) -> PlanRegion:
        """What of a region is left in a plan."""
        decided = set(plan.decisions)
        if decided.issuperset(region.plan.decisions):
            return region
        rest = GraphPlan(tuple(item for item in region.plan.decisions if item in decided))
        return replace(region, plan=rest, described=self._plans.describe(rest))


def _is_in_doubt(region: PlanRegion) -> bool:
    """Whether the region may gain nothing, and may gain something that is worth having."""
    return not region.gains and region.high is not None and region.high > 1.0 + GAIN


def _log_ratio(found: ModelLatency) -> LogRatio:
    """The second model's time over the first one's; whoever compared them knows the pairs."""
    deviation = math.log(found.high / found.low) / (2.0 * _NORMAL)
    return LogRatio(math.log(found.ratio), max(deviation, 1e-9), 0)
