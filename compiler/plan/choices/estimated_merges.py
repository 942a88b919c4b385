"""What an untuned build merges by estimates: convolutions of the same data with Winograd's form.

The fewer channels each has, the more of its time the transform of their data is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.operators.registry import UNEXPRESSED
from tunefarm.compiler.plan.choices.estimate import Estimate, Estimator
from tunefarm.compiler.plan.choices.graph_sites import BEFORE_MERGING
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan, Merged
from tunefarm.compiler.plan.fusion.fuse import Group, fuse
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.plan.fusion.merge_candidates import has_winograd, merge_candidates
from tunefarm.compiler.plan.optimise import optimise_for
from tunefarm.compiler.schedule.spaces import SpaceCache

LEAST_GAIN = 0.045
"""Of the time of the kernels that a merge changes, which it must be expected to save. Where more
was expected 1 to 30 % were measured; where less was, anything from 10 % gained to 10 % lost."""


def estimated_merges(
    graph: Graph,
    spaces: SpaceCache,
    allowance: ResourceBudget | None = None,
    plan: GraphPlan = DEFAULT_PLAN,
) -> GraphPlan:
    """`plan` with the merges that are expected to pay with it.

    `graph` is the one that is imported. A look at it is enough for most models; others are
    optimised once, and again with each candidate. Nothing is merged where the memory of a run is
    limited, which joint results need more of, nor for several threads, on two of which a yolov8n
    took 1.03 of its time; nor in other types than f32 or for dynamic sizes: that was not measured.
    Raises what `optimise_for` raises.
    """
    allowance = ResourceBudget() if allowance is None else allowance
    is_weighed = graph.signature is None and spaces.numerics.narrow is None and spaces.threads == 1
    if not is_weighed or allowance.limits.arena is not None or not _has_siblings(graph):
        return plan
    stages: dict[str, Graph] = {}

    def optimised(plan: GraphPlan) -> _Fused:
        target, numerics = spaces.target, spaces.numerics
        made = optimise_for(graph, target, stages.__setitem__, allowance, numerics, plan)
        groups = {group.output: group for group in fuse(made, allowance)}
        return _Fused(GroupKernels(made, numerics.rounds_each), groups)

    apart, estimator = optimised(plan), Estimator(spaces)
    taken: list[Merged] = []
    for decision in merge_candidates(stages[BEFORE_MERGING]):
        together = optimised(plan.with_decisions(decision))
        before, after = apart.without(together, estimator), together.without(apart, estimator)
        is_faster = _seconds(after) <= (1.0 - LEAST_GAIN) * _seconds(before)
        if is_faster and any(item.kind == "winograd" for item in after):
            taken.append(decision)
    return plan.with_decisions(*taken)


def _has_siblings(graph: Graph) -> bool:
    """Whether two windows that Winograd has a form for read the same value."""
    read = [node.inputs[0] for node in graph.nodes if has_winograd(graph, node)]
    return len(set(read)) < len(read)


@dataclass(frozen=True, slots=True)
class _Fused:
    """An optimised graph's groups by their outputs, and their kernels."""

    kernels: GroupKernels
    groups: Mapping[str, Group]

    def without(self, other: _Fused, estimator: Estimator) -> list[Estimate]:
        """The estimates of the kernels that the other graph does not have."""
        own = (group for output, group in self.groups.items() if other.groups.get(output) != group)
        expressed = (group for group in own if group.pattern not in UNEXPRESSED)
        return [
            estimator(made.kernel, made.key)
            for group in expressed
            for made in self.kernels.of(group)
        ]


def _seconds(estimates: list[Estimate]) -> float:
    return sum(item.seconds for item in estimates)
