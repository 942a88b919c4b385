"""What an untuned build decides of the graph by estimates: chains, which are cheap to weigh.

A chain changes no other kernel than those that it joins, so that each candidate is the difference
of a few estimates. Layouts change more.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.plan.choices.estimate import Estimator
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, Chain, GraphPlan
from tunefarm.compiler.plan.fusion.chain_candidates import chain_candidates
from tunefarm.compiler.plan.fusion.chain_groups import GroupChains, is_part
from tunefarm.compiler.plan.fusion.fuse import Group, fuse
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.schedule.spaces import SpaceCache

LEAST_GAIN = 0.03
"""Of the time of the kernels that a chain joins, which it must be expected to save."""


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A chain, what it saves, and the groups that it joins, by their outputs."""

    chains: tuple[Chain, ...]
    gain: float
    joined: frozenset[str]


def estimated_chains(
    kernels: GroupKernels, spaces: SpaceCache, known: Collection[str] | None = None
) -> GraphPlan:
    """The chains that are expected to save most together; `DEFAULT_PLAN` if none is.

    `kernels` are those of the graph that is extracted from. `known` are the values that decisions
    can name, as for `chain_candidates`.
    """
    estimate = Estimator(spaces)
    candidates = chain_candidates(
        kernels,
        spaces.target,
        known=known,
        is_scheduled=lambda kernel, key: estimate(kernel, key).kind == "chain",
    )
    if not candidates:
        return DEFAULT_PLAN
    weigh = _Scales(GroupChains(kernels.graph, fuse(kernels.graph)), kernels, estimate)
    taken: set[str] = set()
    chosen: list[Chain] = []
    weighed = [weigh(candidate.chains) for candidate in candidates]
    for item in sorted(weighed, key=lambda item: -item.gain):
        if item.gain > 0.0 and not item.joined & taken:
            taken |= item.joined
            chosen += item.chains
    return GraphPlan(tuple(chosen))


@dataclass(frozen=True, slots=True)
class _Scales:
    """Weighs chains of the groups that there are without them."""

    groups: GroupChains
    kernels: GroupKernels
    estimate: Estimator

    def __call__(self, chains: tuple[Chain, ...]) -> _Weighed:
        (made,) = (group for group in self.groups.joined(GraphPlan(chains)) if group.stored)
        if _sums_windows(self.kernels.graph, made):
            return _Weighed(chains, 0.0, frozenset())
        outputs = {*made.stored, made.output}
        parts = [group for group in self.groups.groups if group.output in outputs]
        apart = sum(map(self._seconds, parts))
        gain = (1.0 - LEAST_GAIN) * apart - self._seconds(made)
        return _Weighed(chains, gain, frozenset(group.output for group in parts))

    def _seconds(self, group: Group) -> float:
        made = self.kernels.of(group)
        return sum(self.estimate(item.kernel, item.key).seconds for item in made)


def _sums_windows(graph: Graph, group: Group) -> bool:
    """Whether a part sums windows over the channels of what another part gives.

    Such chains were measured to take up to 1.5 times as long as their parts (3x3 on 3x3, both of
    stride 2), which their loops do not tell: a search may try them.
    """
    _, *later = (node for node in group.nodes if is_part(graph, node))
    return any(
        node.operator == "conv"
        and complete_attributes(node).integer("groups") == 1
        and math.prod(graph.types[node.inputs[1]].shape[2:4]) > 1
        for node in later
    )
