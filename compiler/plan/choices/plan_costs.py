"""What decisions cost: the kernels that are there with one, and without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.calls_in_run import calls_in_run
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelProgram
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.decisions.graph_plan import (
    Decision,
    GraphPlan,
    Layout,
    Merged,
)
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.plan.optimise import optimise_for
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of kernels in one run; `measured` is the part of them that records are behind."""

    seconds: float
    measured: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.measured + other.measured)

    def times(self, count: int) -> Cost:
        """Of so many calls."""
        return Cost(count * self.seconds, count * self.measured)

    @property
    def is_measured(self) -> bool:
        """Whether all of it is."""
        return self.measured >= self.seconds


KernelCost: TypeAlias = Callable[[FusedKernel], Cost | None]
"""What one call of a kernel costs; None where nobody knows."""


class PlanCosts:
    """Kernels of one model under plans; each distinct kernel is asked about once.

    Raises PlanError for plans that do not fit, and what `optimise` does.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        cost: KernelCost,
        numerics: Numerics = DEFAULT_NUMERICS,
        allowance: ResourceBudget | None = None,
    ) -> None:
        self.graph = graph
        self.target = target
        self.numerics = numerics
        self.allowance = ResourceBudget() if allowance is None else allowance
        self._cost = cost
        self._known: dict[str, Cost | None] = {}
        self._optimised: dict[GraphPlan, Graph] = {}
        self._calls: dict[GraphPlan, Counter[str]] = {}

    def total(self, plan: GraphPlan) -> Cost | None:
        """All kernels under a plan; None unless all of them are known."""
        return self._sum(self._kernel_counts(plan))

    def differing(self, plan: GraphPlan, *decisions: Decision) -> tuple[Cost | None, Cost | None]:
        """The kernels of a plan that are gone with these decisions too, and those that are new."""
        before, after = (
            self._kernel_counts(plan),
            self._kernel_counts(plan.with_decisions(*decisions)),
        )
        return self._sum(before - after), self._sum(after - before)

    def _sum(self, calls: Counter[str]) -> Cost | None:
        total = Cost(0.0)
        for key, count in calls.items():
            cost = self._known[key]
            if cost is None:
                return None
            total += cost.times(count)
        return total

    def _kernel_counts(self, plan: GraphPlan) -> Counter[str]:
        """How often a run calls each kernel, by workload key."""
        if plan not in self._calls:
            program = self._program(plan)
            for key, calls in program.kernel_calls().items():
                if key not in self._known:
                    self._known[key] = self._cost(calls[0].kernel)
            self._calls[plan] = Counter(calls_in_run(program))
        return self._calls[plan]

    def _program(self, plan: GraphPlan) -> KernelProgram:
        part = GraphPlan((*plan.of(Layout), *plan.of(Merged)))
        graph = self._optimised.get(part)
        if graph is None:
            graph = optimise_for(self.graph, self.target, None, self.allowance, self.numerics, part)
            self._optimised = {part: graph}  # weights are large: only the last one is kept
        kernels = GroupKernels(graph, self.numerics.rounds_each)
        return extract_kernels(graph, self.allowance, plan, kernels)
