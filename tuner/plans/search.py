"""The search for a plan: measure what the choice hangs on, then choose.

Of each kind in turn the cheapest decisions are found as if luck were with all that is not known. If
all their kernels were measured, nothing else can be better; else these are measured, those first
whose cost is most uncertain, and it is asked again. (Optimism in the face of uncertainty, as in the
search of A*: what is never part of a cheapest plan is never measured.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, Decision, GraphPlan
from tunefarm.tuner.plans.costs import KernelCosts
from tunefarm.tuner.plans.problems import Kind, LocalParts, Solved
from tunefarm.tuner.plans.programs import PlannedProgram, Programs

LEAST_GAIN = 0.005
"""Of the model's time, by its kernels', below which no plan is proposed."""
AT_ONCE = 16
"""Kernels that are measured before it is asked again."""

MakeProblem: TypeAlias = Callable[[Programs, GraphPlan], LocalParts]
"""The problem of one kind given earlier decisions."""

Measure: TypeAlias = Callable[[Kind, Mapping[str, FusedKernel]], Sequence[str]]
"""Measures kernels that a kind of decisions leads to (OWN: the model as it is), by workload key;
the keys of those that were, none when it is over."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan that should be faster: `gain` is what is expected of it, as a share of the time of the
    kernels without it; `kind` says what it decides, for people."""

    plan: GraphPlan
    kind: str
    gain: float
    arena_bytes: int


@dataclass(frozen=True, slots=True)
class Proposals:
    """The plan of all kinds together; what is tried where that is not faster: guesses, then those
    of single kinds, the most promising first; and how many candidates each kind had."""

    joint: Proposal | None = None
    single: tuple[Proposal, ...] = ()
    candidates: Mapping[Kind, int] = field(default_factory=dict)


class PlanSearch:
    """One search over the problems of a model, for one target.

    Plans whose arena needs more than `most_bytes` are not proposed; None: any may. What is proposed
    is on top of what `base` decides, and compared with that.
    """

    def __init__(
        self,
        programs: Programs,
        costs: KernelCosts,
        kinds: Sequence[MakeProblem],
        measure: Measure,
        most_bytes: int | None = None,
        base: GraphPlan = DEFAULT_PLAN,
        guesses: Callable[[Programs, GraphPlan], Iterable[GraphPlan]] = lambda *_: (),
    ) -> None:
        """`guesses` are whole plans on top of the base, proposed whatever their kernels take."""
        self._base, self._guesses = base, guesses
        self._programs, self._costs = programs, costs
        self._kinds, self._measure = kinds, measure
        self._most_bytes = most_bytes
        self._over = False

    def run(self) -> Proposals:
        """Search; what is proposed, nothing where that is not expected to be faster."""
        self._settle(Kind.OWN, self._programs.of(self._base).calls)
        plan = self._base
        decided: dict[Kind, tuple[Decision, ...]] = {}
        hoped: dict[Kind, tuple[Decision, ...]] = {}
        candidates: dict[Kind, int] = {}
        for make in self._kinds:
            problem = make(self._programs, plan)
            if not problem.size:
                continue
            candidates[problem.kind] = problem.size
            self._over = False
            decisions = self._solved(problem).decisions
            # Their kernels take less in a model than alone, since what they leave is near: all that
            # seem to gain anything are for the whole model to decide.
            hoped[problem.kind] = problem.solve(lambda key: self._costs[key].seconds).decisions
            program = self._programs.fitting(plan.with_decisions(*decisions))
            if not decisions or program is None or not self._gains(program, plan):
                continue
            decided[problem.kind] = decisions
            plan = program.plan
        single = [
            found
            for kind, decisions in [*decided.items(), *hoped.items()]
            if (found := self._proposal(self._base.with_decisions(*decisions), kind)) is not None
        ]
        single.sort(key=lambda item: -item.gain)
        single = [*self._guessed([plan]), *single]
        single = list({item.plan: item for item in reversed(single)}.values())[::-1]
        joint = self._proposal(plan, " and ".join(decided)) if decided else None
        if joint is None and single:
            joint = single[0]
        return Proposals(joint, tuple(single), candidates)

    def _guessed(self, known: Sequence[GraphPlan]) -> list[Proposal]:
        """What is worth a run of the whole model, though its kernels alone do not show why."""
        found = []
        for plan in self._guesses(self._programs, self._base):
            program = None if plan in known else self._programs.fitting(plan)
            if program is not None and plan != self._base and self._fits(program):
                found.append(Proposal(plan, "guesses", 0.0, program.arena_bytes))
        return found

    def _solved(self, problem: LocalParts) -> Solved:
        """The cheapest decisions, all that they depend on measured as far as there is time."""
        while not self._over:
            found = problem.solve(lambda key: self._costs[key].optimistic)
            if self._costs.is_measured(found.calls):
                break
            self._settle(problem.kind, found.calls)
        return problem.solve(lambda key: self._costs[key].seconds, self._doubt)

    def _doubt(self, key: str) -> float:
        """How far off the cost of a kernel may be, in seconds."""
        cost = self._costs[key]
        return cost.seconds * cost.deviation if math.isfinite(cost.seconds) else 0.0

    def _settle(self, kind: Kind, calls: Mapping[str, int]) -> None:
        """Measure the most uncertain of these kernels, by what they weigh."""
        costs = {key: self._costs[key] for key in calls}
        unknown = [key for key, cost in costs.items() if not cost.measured]
        unknown.sort(key=lambda key: -calls[key] * (costs[key].seconds - costs[key].optimistic))
        while unknown and not self._over:
            batch, unknown = unknown[:AT_ONCE], unknown[AT_ONCE:]
            kernels = {key: self._programs.kernels[key] for key in batch}
            self._costs.learn(self._measure(kind, kernels))
            self._over = not any(self._costs[key].measured for key in batch)

    def _gains(self, program: PlannedProgram, before: GraphPlan) -> bool:
        """Whether the plan is worth something on top of what was decided before it."""
        least = (1.0 - LEAST_GAIN) * self._seconds(self._programs.of(before))
        return self._fits(program) and self._seconds(program) < least

    def _proposal(self, plan: GraphPlan, kind: str) -> Proposal | None:
        program = self._programs.fitting(plan)
        if program is None or not self._fits(program):
            return None
        base = self._seconds(self._programs.of(self._base))
        gain = 1.0 - self._seconds(program) / base if base else 0.0
        if not math.isfinite(gain) or gain < LEAST_GAIN:
            return None
        return Proposal(plan, kind, gain, program.arena_bytes)

    def _seconds(self, program: PlannedProgram) -> float:
        return self._costs.of_calls(program.calls)

    def _fits(self, program: PlannedProgram) -> bool:
        return self._most_bytes is None or program.arena_bytes <= self._most_bytes
