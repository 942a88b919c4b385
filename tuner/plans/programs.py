"""Programs: the kernels that a model has under one plan or another, and the memory they need.

Two plans differ in few kernels; a kernel that several plans share is one and the same workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tunefarm.compiler.errors import LoweringError, PlanError, ScheduleError, VerifyError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.calls_in_run import calls_in_run
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall, KernelProgram
from tunefarm.compiler.limits import Limits, ResourceBudget
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.choices.graph_sites import GraphSites, graph_sites
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.plan.fusion.group_kernels import MadeKernels
from tunefarm.compiler.runtime.planning.memory_plan import plan_memory
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.tuner.records.graph_choice import described


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """What a plan makes of a model: its kernels' calls in a run by workload key, the key of the
    kernel that makes each value, and the bytes of its arena without kernels' own workspaces."""

    plan: GraphPlan
    calls: Mapping[str, int]
    makers: Mapping[str, str] = field(repr=False)
    arena_bytes: int = 0

    def changed_from(self, other: PlannedProgram) -> frozenset[str]:
        """The values that other kernels make, or that only one of the two makes."""
        names = self.makers.keys() | other.makers.keys()
        return frozenset(name for name in names if self.makers.get(name) != other.makers.get(name))

    def is_same(self, other: PlannedProgram) -> bool:
        """Whether both have the same kernels at the same places, whatever their plans say."""
        return (self.makers, self.calls) == (other.makers, other.calls)


class Programs:
    """The programs of one model for one target, each plan's made once.

    `kernels` are all that occurred in any of them, by workload key.
    """

    def __init__(self, graph: Graph, target: Target, numerics: Numerics, limits: Limits) -> None:
        self.graph, self.target = graph, target
        self.numerics, self.limits = numerics, limits
        self.kernels: dict[str, FusedKernel] = {}
        self._made_kernels: MadeKernels = {}  # most are the same under other plans
        self._known: dict[GraphPlan, PlannedProgram | PlanError] = {}
        self._sites: tuple[GraphPlan, GraphSites] | None = None  # one: each has constants

    def of(self, plan: GraphPlan) -> PlannedProgram:
        """The program under a plan. Raises PlanError if that does not fit the model."""
        if plan not in self._known:
            self._known[plan] = self._made(plan)
        found = self._known[plan]
        if isinstance(found, PlanError):
            raise found
        return found

    def fitting(self, plan: GraphPlan) -> PlannedProgram | None:
        """The same; None if the plan does not fit."""
        try:
            return self.of(plan)
        except PlanError:
            return None

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

    def _made(self, plan: GraphPlan) -> PlannedProgram | PlanError:
        try:
            program = kernels_of(
                self.graph,
                self.target,
                limits=self.limits,
                numerics=self.numerics,
                plan=plan,
                made=self._made_kernels,
            )
        except PlanError as error:
            return error
        except (VerifyError, LoweringError, ScheduleError) as error:  # ours; no job ends for it
            return PlanError(f"the plan leads to a program that cannot be: {error.message}")
        for call in program.calls:
            if isinstance(call, KernelCall):
                self.kernels.setdefault(call.key, call.kernel)
        return PlannedProgram(
            plan,
            MappingProxyType(calls_in_run(program)),
            MappingProxyType(_makers(program)),
            arena_of(program),
        )


def arena_of(program: KernelProgram) -> int:
    """Bytes of the values between kernels, as the memory plan lays them out."""
    unlimited = ResourceBudget(Limits(bytes=1 << 62))
    return plan_memory(program, [0] * len(program.calls), unlimited).arena_bytes


def _makers(program: KernelProgram) -> dict[str, str]:
    return {call.output: call.key for call in program.calls if isinstance(call, KernelCall)}
