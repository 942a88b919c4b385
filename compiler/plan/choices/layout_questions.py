"""In which blocks values may lie, and what each choice costs with all others as they are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.describe import Choice, Question
from tunefarm.compiler.plan.choices.graph_sites import GraphSites
from tunefarm.compiler.plan.choices.layout_problem import layout_name, layout_problem
from tunefarm.compiler.plan.choices.plan_costs import Cost, PlanCosts
from tunefarm.compiler.plan.choices.solver import ChoiceProblem
from tunefarm.compiler.plan.decisions.graph_plan import PLAIN, GraphPlan
from tunefarm.compiler.plan.decisions.plan_names import PlanNames
from tunefarm.compiler.types.dtypes import DType


def layout_questions(costs: PlanCosts, sites: GraphSites, plan: GraphPlan) -> Iterator[Question]:
    """A question for each class of values that share a layout: their candidates, and how they lie.

    A candidate costs the kernels of the class and the conversions round it, where the classes next
    to it lie as they do.
    """
    graph, known = sites.planned, _Known(costs)
    found = layout_problem(graph, costs.target.lanes(DType.F32), known.seconds)
    problem, lying = found.problem, _lying(sites)
    chosen = [
        candidates.index(lying.get(name, found.by_rules[name]))
        if lying.get(name) in candidates
        else candidates.index(found.by_rules[name])
        for name, candidates in zip(problem.names, problem.candidates, strict=True)
    ]
    for at, each in enumerate(found.classes):
        seconds = _alone(problem, chosen, at)
        channels = {graph.types[value].shape[1] for value in each.values}
        choices = tuple(
            Choice(_shown(block, channels), known.cost(value), chosen=number == chosen[at])
            for number, (block, value) in enumerate(zip(each.blocks, seconds, strict=True))
        )
        yield Question("layout", (each.name,), choices, len(each.values))


def _shown(block: int, channels: Collection[int]) -> str:
    """What a layout is called for values of so many channels."""
    return "NHWC" if channels == {block} else layout_name(block)


@dataclass(slots=True)
class _Known:
    """What kernels cost, and whether nobody knew of one, or one was not measured."""

    costs: PlanCosts
    unknown: bool = False
    measured: bool = True

    def seconds(self, kernel: FusedKernel) -> tuple[float, float]:
        """Seconds of a kernel, as if they were certain."""
        cost = self.costs.of_kernel(kernel)
        self.unknown = self.unknown or cost is None
        self.measured = self.measured and cost is not None and cost.is_measured
        return (0.0 if cost is None else cost.seconds), 0.0

    def cost(self, seconds: float) -> Cost | None:
        """What is to be said of a sum of them."""
        if self.unknown or not math.isfinite(seconds):
            return None
        return Cost(seconds, seconds if self.measured else 0.0)


def _lying(sites: GraphSites) -> Mapping[str, str]:
    """How values of the graph before layouts lie after them, as far as they are there."""
    names, types = PlanNames(sites.optimised), sites.optimised.types
    found = {}
    for node in sites.planned.nodes:
        if len(sites.planned.types[node.output].shape) != 4:
            continue
        made = names.node(node.output)
        if made is not None:
            shape = types[made.output].shape
            found[node.output] = layout_name(shape[-1] if len(shape) == 5 else PLAIN)
    return found


def _alone(problem: ChoiceProblem, chosen: list[int], at: int) -> list[float]:
    """What depends on one variable, by its candidates, with all others as chosen."""
    total = problem.costs[at].copy()
    for (first, second), table in problem.pairs.items():
        if first == at:
            total += table[:, chosen[second]]
        elif second == at:
            total += table[chosen[first], :]
    return [float(value) for value in total]
