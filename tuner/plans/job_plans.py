"""The plans of a job: what was recorded before, what its whole models choose, what it records.

begin     the recorded plan of each target, where it still fits
choose    what estimates propose -> whole models in turn -> a choice
confirm   at the end of the job: the tuned model under the plan next to that under the rules
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tunefarm.compiler.errors import (
    LimitError,
    LoweringError,
    MeasureError,
    PlanError,
    ScheduleError,
    TunefarmError,
    VerifyError,
)
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelProgram
from tunefarm.compiler.limits import Limits, ResourceBudget
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.choices.estimated_plan import estimated_plan
from tunefarm.compiler.plan.choices.graph_sites import GraphSites, graph_sites
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Decision,
    GraphPlan,
    Layout,
)
from tunefarm.compiler.plan.fusion.group_kernels import MadeKernels
from tunefarm.compiler.runtime.planning.memory_plan import plan_memory
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings
from tunefarm.db.records import BestRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.recorded_plan import plan_to_apply, record_plan
from tunefarm.tuner.confirm.latency import SLOWER, ModelLatency
from tunefarm.tuner.confirm.whole_model import CompareSpecs, ModelBuilds
from tunefarm.tuner.from_settings import limits_of, numerics_of
from tunefarm.tuner.interrupt import Interrupt
from tunefarm.tuner.records.graph_choice import GraphChoice, described
from tunefarm.tuner.reports.gains import UNCHANGED

# --- The memory that a model's values need between kernels under one plan or another -------------
#
# Where that is more than is allowed, what is left of the rules is taken back step by step: each
# time the decision that frees most.


class Arenas:
    """The arenas of one model for one target, each plan's planned once."""

    def __init__(self, graph: Graph, target: Target, numerics: Numerics, limits: Limits) -> None:
        self.graph, self.target = graph, target
        self.numerics, self.limits = numerics, limits
        self._made: MadeKernels = {}  # most are the same under other plans
        self._known: dict[GraphPlan, int | PlanError] = {}
        self._sites: tuple[GraphPlan, GraphSites] | None = None  # one: each has constants

    def bytes_of(self, plan: GraphPlan) -> int:
        """Bytes of the values between kernels, as the memory plan lays them out.

        Raises PlanError for a plan that does not fit the model.
        """
        if plan not in self._known:
            self._known[plan] = self._planned(plan)
        found = self._known[plan]
        if isinstance(found, PlanError):
            raise found
        return found

    def fits(self, plan: GraphPlan, most_bytes: int | None) -> bool:
        """Whether the plan fits the model, in no more than so many bytes (None: any number)."""
        try:
            needed = self.bytes_of(plan)
        except PlanError:
            return False
        return most_bytes is None or needed <= most_bytes

    def described(self, plan: GraphPlan) -> str:
        """A plan of the model in a few words."""
        graph = self.sites(DEFAULT_PLAN).planned
        order = [node.output for node in graph.nodes]
        shapes = {name: graph.types[name].shape for name in order}
        channels = {name: shape[1] for name, shape in shapes.items() if len(shape) == 4}
        return described(plan, order, channels)

    def sites(self, plan: GraphPlan) -> GraphSites:
        """What else can be decided on top of a plan. Raises PlanError if that does not fit."""
        if self._sites is None or self._sites[0] != plan:
            self._sites = plan, graph_sites(self.graph, self.target, self.numerics, plan)
        return self._sites[1]

    def _planned(self, plan: GraphPlan) -> int | PlanError:
        try:
            program = kernels_of(
                self.graph,
                self.target,
                limits=self.limits,
                numerics=self.numerics,
                plan=plan,
                made=self._made,
            )
        except PlanError as error:
            return error
        except (VerifyError, LoweringError, ScheduleError) as error:  # ours; no job ends for it
            return PlanError(f"the plan leads to a program that cannot be: {error.message}")
        return arena_of(program)


def arena_of(program: KernelProgram) -> int:
    """Bytes of the values between kernels, as the memory plan lays them out."""
    unlimited = ResourceBudget(Limits(bytes=1 << 62))
    return plan_memory(program, [0] * len(program.calls), unlimited).arena_bytes


def within_memory(
    arenas: Arenas, most_bytes: int, is_late: Callable[[], bool] = lambda: False
) -> GraphPlan:
    """A plan whose arena needs no more than that; the rules where these do.

    Raises LimitError if none was found, which names the minimum.
    """
    least = DEFAULT_PLAN
    while (needed := arenas.bytes_of(least)) > most_bytes:
        smaller = _smaller(arenas, least, is_late)
        if smaller == least:
            raise LimitError(
                f"the values between kernels take {needed} bytes at least, and "
                f"{most_bytes} are allowed",
                hint="limits.memory, --max-memory; a smaller batch or image needs less",
            )
        least = smaller
    return least


def _smaller(arenas: Arenas, before: GraphPlan, is_late: Callable[[], bool]) -> GraphPlan:
    """The smallest plan that one decision more leads to, or all images in rows."""
    best = before
    for decisions in _candidates(arenas, before):
        plan = before.with_decisions(*decisions)
        if not is_late() and arenas.fits(plan, arenas.bytes_of(best) - 1):
            best = plan
    return best


def _candidates(arenas: Arenas, plan: GraphPlan) -> Sequence[tuple[Decision, ...]]:
    sites = arenas.sites(plan)
    nodes, types = sites.planned.nodes, sites.planned.types
    images = [node.output for node in nodes if len(types[node.output].shape) == 4]
    plain = tuple(Layout(name, PLAIN) for name in images)
    chains = sorted(sites.chains, key=lambda item: -item.saved_bytes)
    decided = set(plan.decisions)
    return [plain, *(item.chains for item in chains if not set(item.chains) <= decided)]


# --- Whole models decide about plans -------------------------------------------------------------

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


def _percent(latency: ModelLatency) -> str:
    return f"{100.0 * (1.0 / latency.ratio - 1.0):.0f} %"


_LEAST_SECONDS = 8.0
"""With less the rules decide."""


@dataclass(slots=True)
class JobPlans:
    """The plans of one job by its targets' keys: those that were `recorded` when it began, or that
    memory allows instead, and those that are `chosen`; targets without one are compiled as the
    rules decide.

    `built_from` are the hash of the model as it was imported and the settings of its builds.
    """

    graph: Graph
    settings: Settings
    numerics: Numerics | None
    store: Store
    built_from: tuple[str, Settings]
    notify: Callable[[str], None]
    recorded: dict[str, GraphChoice] = field(default_factory=dict)
    chosen: dict[str, GraphChoice] = field(default_factory=dict)
    searched: set[str] = field(default_factory=set)

    @property
    def are_searched(self) -> bool:
        """Whether the settings have plans searched, and recorded ones applied."""
        return self.settings.searches_plans

    def begin(self, targets: Sequence[Target]) -> None:
        """Take over the recorded plan of each target, if it still fits the model.

        Raises LimitError where the rules are to decide and need more memory than is allowed.
        """
        if not self.are_searched:
            for target in targets:
                if self._needs_less(target):
                    needed = self._arenas(target).bytes_of(DEFAULT_PLAN)
                    raise LimitError(
                        f"the values between kernels take {needed} bytes by the rules, and "
                        f"{self._memory} are allowed",
                        hint="--plan search looks for what needs less",
                    )
            return
        for target in targets:
            found = plan_to_apply(self.store, *self.built_from, target)
            for note in found.notes:
                self.notify(note)
            if found.choice is None:
                continue
            try:
                needed = self._arenas(target).bytes_of(found.plan)
            except PlanError as error:
                self.notify(
                    f"the recorded plan does not fit the model, the rules decide: {error.message}"
                )
                continue
            if self._memory is not None and needed > self._memory:
                self.notify(
                    f"the recorded plan needs {needed} bytes for values between kernels, more than "
                    "allowed: it is not taken"
                )
                continue
            self.recorded[target.key] = self.chosen[target.key] = found.choice

    def of(self, target: Target) -> GraphPlan:
        """What is decided of the graph for a target."""
        choice = self.chosen.get(target.key)
        return DEFAULT_PLAN if choice is None else choice.plan

    def decided(self, target: Target) -> GraphChoice | None:
        """What is to be told of a target's plan; None where none was searched or recorded."""
        if target.key not in self.searched and target.key not in self.chosen:
            return None
        return self.chosen.get(target.key, GraphChoice())

    def choose(
        self,
        target: Target,
        builds: ModelBuilds,
        compare: CompareSpecs,
        interrupt: Interrupt,
        *,
        name: str,
        seconds: float | None,
    ) -> bool:
        """Choose a plan for a target within so many seconds (None: any number); whether there is
        another one than before. It is recorded as soon as whole models have confirmed it.

        Raises LimitError if no plan was found whose values need as little memory as the settings
        allow.
        """
        began = time.monotonic()

        def is_late() -> bool:
            passed = time.monotonic() - began
            return interrupt.asked or (seconds is not None and passed > seconds)

        arenas = self._arenas(target)
        forced = self._force(target, arenas, name, is_late)
        if not self._may_choose(seconds):
            return forced
        before = self.of(target)
        base = before if self._needs_less(target) else DEFAULT_PLAN
        compile = self.settings.compile
        spaces = SpaceCache(target, compile.threads, arenas.numerics)
        plan = estimated_plan(self.graph, spaces, ResourceBudget(arenas.limits), base)
        self.searched.add(target.key)
        if is_late() or plan in (base, before) or not arenas.fits(plan, self._memory):
            return forced
        choose = builds.choose(target)

        def built(plan: GraphPlan) -> ExecutableSpec:
            return replace(builds, plan=plan).compile(target, choose)[0]

        found = self._confirmed(plan, before, arenas, built, compare)
        if found is None or interrupt.asked:
            return forced
        self.chosen[target.key] = found
        self._record(target, found, name)
        return True

    def _confirmed(
        self,
        plan: GraphPlan,
        before: GraphPlan,
        arenas: Arenas,
        built: Callable[[GraphPlan], ExecutableSpec],
        compare: CompareSpecs,
    ) -> GraphChoice | None:
        """The choice of a plan whose model is faster beyond doubt than that under the plan
        `before`; None where it is not."""
        text = arenas.described(plan)
        rival = "the rules" if before == DEFAULT_PLAN else "the plan before"
        self.notify(f"measuring the whole model with {text}")
        try:
            latency = compare((built(before), built(plan)))
        except TunefarmError as error:
            self.notify(f"plan: {text} is not taken: {error.message}")
            return None
        if latency.is_unchanged:
            self.notify(f"plan: {text} is the build of {rival}, {UNCHANGED}")
            return None
        if not is_faster(latency):
            bounds = f"{1 / latency.high:.2f}x to {1 / latency.low:.2f}x"
            times = f"{1 / latency.ratio:.2f}x as fast, {bounds}"
            self.notify(f"plan: {text} is not faster than {rival} ({times})")
            return None
        note = f"{text}: {_percent(latency)} faster than {rival}, confirmed"
        notes = () if before == DEFAULT_PLAN else (note,)
        choice = GraphChoice(plan, text, arena_bytes=arenas.bytes_of(plan), notes=notes)
        return confirmed_choice(choice, latency)

    def confirm(
        self,
        target: Target,
        builds: ModelBuilds,
        compare: CompareSpecs,
        settled: Sequence[BestRecord],
        name: str,
    ) -> None:
        """Compare the tuned model under the plan with that under the rules, both from what was ever
        confirmed and what is `settled` now; record what comes of it: the rules if they are faster.

        A kernel that only one of them has may not have been tuned: its default schedule is better
        known than a claim.
        """
        choice = self.chosen.get(target.key)
        if choice is None:
            return
        self.notify("measuring the tuned model with its plan and with the rules in turn")
        choose = builds.choose(target, only_confirmed=True, settled=settled)

        def built(plan: GraphPlan) -> ExecutableSpec:
            return replace(builds, plan=plan).compile(target, choose)[0]

        try:
            latency = compare((built(DEFAULT_PLAN), built(choice.plan)))
        except MeasureError as error:
            if self._needs_less(target):  # and it was recorded when it was chosen
                self.notify(
                    f"plan: {choice.described} stays, since the rules need more memory than is "
                    f"allowed, but could not be compared with them: {error.message}"
                )
                return
            self.notify(f"plan: {choice.described} is not taken: {error.message}")
        else:
            is_slower = latency.low > 1.0
            if self._needs_less(target) or not (is_slower or latency.is_unchanged):
                found = confirmed_choice(choice, latency)
                self.chosen[target.key] = found
                self._record(target, found, name)
                return
            why = "is slower when tuned" if is_slower else f"is {UNCHANGED}, the rules' build"
            self.notify(f"plan: {choice.described} {why}: the rules stay")
        del self.chosen[target.key]
        self._record(target, GraphChoice(), name)

    def give_up(self, target: Target, name: str) -> None:
        """Go back to what was recorded before the job: the model is slower with what it chose."""
        before, now = self.recorded.get(target.key), self.chosen.get(target.key)
        if now is None or (before is not None and before.plan == now.plan):
            return
        del self.chosen[target.key]
        if before is not None:
            self.chosen[target.key] = before
        self._record(target, before or GraphChoice(), name)

    def return_to_rules(self, target: Target, name: str) -> None:
        """Record that the rules decide: no plan makes the model faster than untuned."""
        if self.of(target) != DEFAULT_PLAN:
            self.chosen[target.key] = GraphChoice()
            self._record(target, GraphChoice(), name)

    # --- memory -----------------------------------------------------------------------------------

    @property
    def _memory(self) -> int | None:
        return self.settings.limits.memory

    def _needs_less(self, target: Target) -> bool:
        """Whether the rules need more memory than is allowed."""
        if self._memory is None:
            return False
        return self._arenas(target).bytes_of(DEFAULT_PLAN) > self._memory

    def _force(
        self,
        target: Target,
        arenas: Arenas,
        name: str,
        is_late: Callable[[], bool],
    ) -> bool:
        """Choose a plan that needs less memory where the one before needs more than is allowed;
        whether that was so. Raises LimitError if there is none."""
        before = arenas.bytes_of(self.of(target))
        if self._memory is None or before <= self._memory:
            return False
        plan = within_memory(arenas, self._memory, is_late)
        needed = arenas.bytes_of(plan)
        note = f"{needed} bytes for values between kernels, {before} by the rules"
        found = GraphChoice(plan, arenas.described(plan), arena_bytes=needed, notes=(note,))
        self.notify(f"plan: {found.described} for its memory: {note}")
        # Whatever comes of the job is compared with that: what was before is not allowed.
        self.recorded[target.key] = self.chosen[target.key] = found
        self._record(target, found, name)
        return True

    # --- parts ------------------------------------------------------------------------------------

    def _may_choose(self, seconds: float | None) -> bool:
        if not self.are_searched:
            return False
        if self.graph.signature is not None:
            self.notify("plan: the rules decide, since the model has dynamic shapes")
            return False
        if seconds is not None and seconds < _LEAST_SECONDS:
            self.notify("plan: the rules decide, since there is little time")
            return False
        return True

    def _arenas(self, target: Target) -> Arenas:
        numerics = numerics_of(self.settings, self.numerics)
        limits = replace(limits_of(self.settings), arena=None)  # plans are asked what they need
        return Arenas(self.graph, target, numerics, limits)

    def _record(self, target: Target, choice: GraphChoice, name: str) -> None:
        model_hash, settings = self.built_from
        record_plan(self.store, choice, name, model_hash, settings, target)
