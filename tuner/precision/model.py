"""The model whose contractions are lowered: what plans make of it, compiled and timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import Compiled
from tunefarm.compiler.plan.apply_precisions import apply_precisions
from tunefarm.compiler.plan.precision.contractions import Contraction, contractions
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.choice import ChooseSchedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics
from tunefarm.compiler.types.precision import Calibration, Precision, PrecisionPlan
from tunefarm.configs.settings import Settings
from tunefarm.tuner.building.compile import compile_with
from tunefarm.tuner.confirm.latency import aligned_inputs
from tunefarm.tuner.precision.search import Assignment
from tunefarm.tuner.precision.speed import UniformTimes, marked, uniform_times
from tunefarm.tuner.records.size_ranges import points_of

Say: TypeAlias = Callable[[str], None]


@dataclass(slots=True)
class PlannedModel:
    """A prepared graph, and how what plans make of it is compiled."""

    prepared: Graph
    settings: Settings
    target: Target
    choose: ChooseSchedule | None
    say: Say
    found: tuple[Contraction, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.found = contractions(self.prepared)

    def narrow_kinds(self, calibration: Calibration | None) -> list[Precision]:
        """The precisions below f32 that this target has instructions for."""
        has = self.target.dot_products
        kinds = []
        if has(DType.BF16, DType.BF16, DType.F32):
            kinds.append(Precision.BF16)
        if has(DType.F16, DType.F16, DType.F32):
            kinds.append(Precision.F16)
        if calibration is not None and any(item.quantisable for item in self.found):
            kinds.append(Precision.INT8)
        return kinds

    def assignment(self, kind: Precision) -> dict[str, Precision]:
        """Every contraction that can be in this precision is."""
        return {item.identity: kind for item in self.found if item.has(kind)}

    def lowered(
        self, assignment: Assignment, calibration: Calibration | None
    ) -> tuple[Graph, Numerics]:
        """The model in these precisions."""
        return apply_precisions(self.prepared, PrecisionPlan(dict(assignment), calibration))

    def part_of(self, share: int) -> Settings:
        """The settings of one of so many jobs that have the budget together."""
        search = self.settings.search
        trials = search.total_trials
        update = {
            "total_trials": None if trials is None else max(1, trials // share),
            "minutes": None if search.minutes is None else search.minutes / share,
        }
        return self.settings.model_copy(update={"search": search.model_copy(update=update)})

    def compiled(self, graph: Graph, numerics: Numerics = DEFAULT_NUMERICS) -> Compiled:
        """A graph built with the best schedules on record."""
        return compile_with(graph, self.choose, self.settings, self.target, numerics=numerics)

    def executable(self, graph: Graph, numerics: Numerics = DEFAULT_NUMERICS) -> Executable:
        """The same, loaded."""
        return Executable(self.compiled(graph, numerics).spec.of_tensors())

    def _greatest_sizes(self) -> Mapping[str, int]:
        """Those at which kernels on record were measured."""
        signature = self.prepared.signature
        if signature is None:
            return {}
        return points_of(signature)[-1].symbols

    def times(
        self, kinds: Sequence[Precision], calibration: Calibration | None
    ) -> dict[Precision, UniformTimes]:
        """What the contractions take in each precision."""
        self.say("timing the kernels of each precision")
        graph = marked(self.prepared)
        builds = {}
        for kind in kinds:
            plan = PrecisionPlan(self.assignment(kind), calibration)
            builds[kind] = self.compiled(*apply_precisions(graph, plan))
        executable = Executable(builds[Precision.F32].spec.of_tensors())
        inputs = aligned_inputs(executable, self.settings.search.seed, self._greatest_sizes())
        return uniform_times(builds, inputs)
