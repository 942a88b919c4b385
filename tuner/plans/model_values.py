"""ModelValues: the values that a model's plans decide about, to name plans and to shorten them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, PLAIN, GraphPlan, Layout
from tunefarm.compiler.plan.layouts.choose_layouts import forms_by_rules
from tunefarm.compiler.types.dtypes import DType
from tunefarm.tuner.plans.programs import Programs
from tunefarm.tuner.records.graph_choice import described


@dataclass(frozen=True, slots=True)
class ModelValues:
    """The values of a model's graph before layouts, as the rules have it: their `channels` where
    they are images, and the block in which each lies `by_rules`, both in the graph's order."""

    channels: Mapping[str, int]
    by_rules: Mapping[str, int]

    @staticmethod
    def of(programs: Programs) -> ModelValues:
        """Those of the model that these are the programs of."""
        graph = programs.sites(DEFAULT_PLAN).planned
        lanes = programs.target.lanes(DType.F32)
        forms = forms_by_rules(graph, lanes).forms if lanes > 1 else {}
        names = [node.output for node in graph.nodes]
        shapes = {name: graph.types[name].shape for name in names}
        return ModelValues(
            {name: shape[1] for name, shape in shapes.items() if len(shape) == 4},
            {name: forms[name].gives if name in forms else PLAIN for name in names},
        )

    def described(self, plan: GraphPlan) -> str:
        """A plan in a few words."""
        return described(plan, tuple(self.by_rules), self.channels)

    def simplified(
        self, programs: Programs, plan: GraphPlan, base: GraphPlan = DEFAULT_PLAN
    ) -> GraphPlan:
        """The plan without those layouts on top of its base that the rules choose anyway, if that
        makes the same program."""
        own = (item for item in plan.of(Layout) if self.by_rules.get(item.value) == item.block)
        ruled = set(own) - set(base.decisions)
        program = programs.fitting(plan)
        kept = (item for item in plan.decisions if item not in ruled)
        shorter = base.with_decisions(*kept)
        found = programs.fitting(shorter) if ruled else None
        is_same = found is not None and program is not None and found.is_same(program)
        return shorter if is_same else plan
