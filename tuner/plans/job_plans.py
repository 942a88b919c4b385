"""The plans of a job: what was recorded before, what its search chooses, what it records.

begin     the recorded plan of each target, where it still fits
search    the kernels that decide -> proposals -> whole models in turn -> a choice
confirm   at the end of the job: the tuned model under the plan next to that under the rules
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from tunefarm.compiler.errors import LimitError, MeasureError, PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.estimate import Estimator
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.with_count import with_count
from tunefarm.configs.settings import Settings
from tunefarm.db.records import BestRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.recorded_plan import plan_to_apply, record_plan
from tunefarm.tuner.confirm.whole_model import CompareSpecs, ModelBuilds
from tunefarm.tuner.from_settings import limits_of, numerics_of
from tunefarm.tuner.interrupt import Interrupt
from tunefarm.tuner.job_request import MakeRunner
from tunefarm.tuner.plans.confirm import ConfirmPlans, confirmed_choice
from tunefarm.tuner.plans.costs import KernelCosts
from tunefarm.tuner.plans.kinds import by_estimates, kinds_of_plans, within_memory
from tunefarm.tuner.plans.problems import Kind
from tunefarm.tuner.plans.programs import Programs
from tunefarm.tuner.plans.search import PlanSearch, Proposals
from tunefarm.tuner.plans.trials import DefaultTrials
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.trials import task_key
from tunefarm.tuner.reports.gains import UNCHANGED
from tunefarm.tuner.search.measuring import off_the_slots

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
