"""The plans of a job: what was recorded before, what its search chooses, what it records.

begin     the recorded plan of each target, where it still fits
search    the kernels that decide -> proposals -> whole models in turn -> a choice
confirm   at the end of the job: the tuned model under the plan next to that under the rules
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from tunefarm.compiler.errors import LimitError, MeasureError, PlanError, TunefarmError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.choices.estimate import Estimator
from tunefarm.compiler.plan.choices.estimated_plan import estimated_plan
from tunefarm.compiler.plan.choices.graph_sites import GraphSites
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Decision,
    GraphPlan,
    Layout,
)
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.with_count import with_count
from tunefarm.configs.settings import Settings
from tunefarm.db.records import BestRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.recorded_plan import plan_to_apply, record_plan
from tunefarm.tuner.confirm.latency import SLOWER, ModelLatency
from tunefarm.tuner.confirm.whole_model import CompareSpecs, ModelBuilds
from tunefarm.tuner.from_settings import limits_of, numerics_of
from tunefarm.tuner.interrupt import Interrupt
from tunefarm.tuner.job_request import MakeRunner
from tunefarm.tuner.plans.costs import DefaultTrials, KernelCosts
from tunefarm.tuner.plans.problems import Kind, LocalParts, parts_of
from tunefarm.tuner.plans.programs import PlannedProgram, Programs
from tunefarm.tuner.plans.search import MakeProblem, PlanSearch, Proposal, Proposals
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.trials import task_key
from tunefarm.tuner.reports.gains import UNCHANGED
from tunefarm.tuner.search.measuring import off_the_slots

# The kinds of decisions that a search looks at, each a problem on top of what was decided before.
#
# Where the values of a model need more memory than is allowed, what is left of the rules is taken
# back step by step: each time the decision that frees most.


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


# --- Whole models decide about plans: what is proposed runs in turn with the rules' build --------
#
# First all that is proposed together; if that is not faster beyond doubt, its kinds one by one,
# and of those that are the best.


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


OWN_KERNELS, KERNELS = 0.25, 0.65
"""When no kernel is measured any more: those of the model as it is, and those of a plan."""
LOOKING, WHOLE = 0.75, 1.0
"""When no candidate is looked at any more, and no plan compared."""
_LEAST_SECONDS = 8.0
"""With less the rules decide."""
MEASURABLE_SECONDS = 20.0
"""With less no kernel is measured: by the time that a runner has started they are half over."""


class PlanningTime:
    """The time since a search for a plan began, which may take so many `seconds` (None: any number)
    and is over at once when somebody asks for that. By shares of these seconds:

    0.25  kernels of the model as it is      0.75  looking at candidates
    0.65  kernels of plans                   1.00  whole models decide
    """

    def __init__(
        self,
        seconds: float | None,
        interrupt: Interrupt,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._interrupt, self._clock = seconds, interrupt, clock
        self._begin = clock()

    def is_late(self, share: float = WHOLE) -> bool:
        """Whether so much of it has passed."""
        if self._interrupt.asked:
            return True
        return self._seconds is not None and self._clock() - self._begin > share * self._seconds

    def may_measure(self, kind: Kind) -> bool:
        """Whether a kernel that decisions of this kind lead to may be measured; OWN: one of the
        model as it is."""
        if not self.is_enough(MEASURABLE_SECONDS):
            return False
        return not self.is_late(OWN_KERNELS if kind is Kind.OWN else KERNELS)

    def is_enough(self, seconds: float) -> bool:
        """Whether there were so many seconds from the beginning."""
        return self._seconds is None or self._seconds >= seconds

    def describe(self, measured: int) -> str:
        """What candidates were judged by, after so many kernels were measured."""
        if self.is_enough(MEASURABLE_SECONDS):
            return f"{with_count(measured, 'kernel')} measured for them"
        return "by what is known of their kernels, since there is little time"


SHARE = 0.2
"""Of a job's time and trials, for the search of a plan and its confirmation, at most."""


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
    measured: Counter[str] = field(default_factory=Counter)
    """Default schedules, for all targets, by how their measurements ended."""

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
                    needed = self._programs(target).of(DEFAULT_PLAN).arena_bytes
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
                needed = self._programs(target).of(found.plan).arena_bytes
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

    def search(
        self,
        target: Target,
        builds: ModelBuilds,
        compare: CompareSpecs,
        make_runner: MakeRunner,
        interrupt: Interrupt,
        *,
        job: str,
        name: str,
        seconds: float | None,
    ) -> bool:
        """Search a plan for a target within so many seconds (None: any number); whether there is
        another one than before. It is recorded as soon as whole models have confirmed it.

        Raises LimitError if no plan was found whose values need as little memory as the settings
        allow.
        """
        planning = PlanningTime(seconds, interrupt)
        programs = self._programs(target)
        forced = self._force(target, programs, name, planning)
        if not self._may_search(planning):
            return forced
        before = self.of(target)
        base = before if self._needs_less(target) else DEFAULT_PLAN
        proposals, measured = self._proposals(programs, make_runner, interrupt, job, planning, base)
        self.searched.add(target.key)
        self.measured += measured
        count = measured.total()
        counts = ", ".join(f"{count} {kind}" for kind, count in proposals.candidates.items())
        if counts:
            self.notify(f"plan: {counts} looked at, {planning.describe(count)}")
        joint = proposals.joint
        if joint is None or interrupt.asked or programs.of(joint.plan).is_same(programs.of(before)):
            return forced
        choose = builds.choose(target)
        confirm = ConfirmPlans(
            lambda plan: replace(builds, plan=plan).compile(target, choose)[0],
            compare,
            programs.described,
            self.notify,
            planning.is_late,
            before,
        )
        found = confirm.best(proposals)
        if found is None or interrupt.asked:
            return forced
        candidates = {str(kind): count for kind, count in proposals.candidates.items()}
        found = replace(found, found={**candidates, "measured": count})
        self.chosen[target.key] = found
        self._record(target, found, name)
        return True

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
        return self._programs(target).of(DEFAULT_PLAN).arena_bytes > self._memory

    def _force(
        self,
        target: Target,
        programs: Programs,
        name: str,
        planning: PlanningTime,
    ) -> bool:
        """Choose a plan that needs less memory where the one before needs more than is allowed;
        whether that was so. Raises LimitError if there is none."""
        before = programs.of(self.of(target))
        if self._memory is None or before.arena_bytes <= self._memory:
            return False
        plan = within_memory(programs, self._memory, planning.is_late)
        needed = programs.of(plan).arena_bytes
        note = f"{needed} bytes for values between kernels, {before.arena_bytes} by the rules"
        found = GraphChoice(plan, programs.described(plan), arena_bytes=needed, notes=(note,))
        self.notify(f"plan: {found.described} for its memory: {note}")
        # Whatever comes of the job is compared with that: what was before is not allowed.
        self.recorded[target.key] = self.chosen[target.key] = found
        self._record(target, found, name)
        return True

    # --- parts ------------------------------------------------------------------------------------

    def _may_search(self, planning: PlanningTime) -> bool:
        if not self.are_searched:
            return False
        if self.graph.signature is not None:
            self.notify("plan: the rules decide, since the model has dynamic shapes")
            return False
        if not planning.is_enough(_LEAST_SECONDS):
            self.notify("plan: the rules decide, since there is little time")
            return False
        return True

    def _proposals(
        self,
        programs: Programs,
        make_runner: MakeRunner,
        interrupt: Interrupt,
        job: str,
        planning: PlanningTime,
        base: GraphPlan,
    ) -> tuple[Proposals, Counter[str]]:
        """What is proposed, and how measurements ended; the runner starts when it is needed."""
        settings, target = self.settings, programs.target
        total = settings.search.total_trials
        trials: list[DefaultTrials] = []
        with ExitStack() as stack:

            def measure(kind: Kind, kernels: Mapping[str, FusedKernel]) -> list[str]:
                def no_time() -> bool:
                    return not planning.may_measure(kind)

                if no_time():
                    return []
                if not trials:
                    with interrupt.at_once():
                        runner = stack.enter_context(make_runner(settings, target, self.notify))
                    stack.enter_context(off_the_slots(settings))
                    most = None if total is None else max(1, int(SHARE * total))
                    found = DefaultTrials(self.store, target, settings, runner, job=job, most=most)
                    interrupt.add_listener(found.stop)
                    trials.append(found)
                return trials[0].measure(kernels, no_time)

            search = PlanSearch(
                programs,
                self._costs(programs),
                kinds_of_plans(lambda: planning.is_late(LOOKING)),
                measure,
                self._memory,
                base,
                partial(by_estimates, threads=settings.compile.threads),
            )
            found = search.run()
        return found, sum((each.measured for each in trials), Counter[str]())

    def _costs(self, programs: Programs) -> KernelCosts:
        compile, target = self.settings.compile, programs.target
        return KernelCosts(
            self.store,
            programs.kernels,
            lambda key: task_key(key, target, compile.threads, compile.numerics),
            Estimator(SpaceCache(target, compile.threads, compile.numerics)),
        )

    def _programs(self, target: Target) -> Programs:
        numerics = numerics_of(self.settings, self.numerics)
        limits = replace(limits_of(self.settings), arena=None)  # plans are asked what they need
        return Programs(self.graph, target, numerics, limits)

    def _record(self, target: Target, choice: GraphChoice, name: str) -> None:
        model_hash, settings = self.built_from
        record_plan(self.store, choice, name, model_hash, settings, target)
