"""What decisions cost by estimates: the kernels that are there with one, and without it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
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

KernelCost: TypeAlias = Callable[[FusedKernel], float]
"""Seconds of one call of a kernel."""


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
        self._known: dict[str, float] = {}
        self._optimised: dict[GraphPlan, Graph] = {}
        self._calls: dict[GraphPlan, Counter[str]] = {}

    def total(self, plan: GraphPlan) -> float:
        """Seconds of all kernels under a plan in one run."""
        return self._sum(self._kernel_counts(plan))

    def differing(self, plan: GraphPlan, *decisions: Decision) -> tuple[float, float]:
        """The same of the kernels that are gone with these decisions too, and of new ones."""
        before, after = (
            self._kernel_counts(plan),
            self._kernel_counts(plan.with_decisions(*decisions)),
        )
        return self._sum(before - after), self._sum(after - before)

    def _sum(self, calls: Counter[str]) -> float:
        return math.fsum(count * self._known[key] for key, count in calls.items())

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
