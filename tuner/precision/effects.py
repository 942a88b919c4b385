"""What plans cost of a model's outputs: the model in that precision, run and compared with f32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.apply_precisions import apply_precisions
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.types.precision import Calibration, PrecisionPlan
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.calibration.data import Samples
from tunefarm.tuner.calibration.metric import Metric, relative_error
from tunefarm.tuner.precision.search import Assignment

Compile: TypeAlias = Callable[[Graph, Numerics], Executable]


@dataclass(slots=True)
class Effects:
    """Errors of plans over some samples: relative ones, or what the user's metric loses.

    `prepared` is the graph that plans are of; `compile` makes an executable of what they make of
    it. The f32 outputs are kept, and each plan is run once.
    """

    prepared: Graph
    calibration: Calibration | None
    samples: Samples
    compile: Compile
    metric: Metric | None = None
    _expected: list[dict[str, Array]] = field(default_factory=list)
    _metric_of_f32: float = 0.0
    _known: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Run the f32 model. Raises SettingsError if the user's metric fails."""
        self._expected = self._outputs(PrecisionPlan())
        if self.metric is not None:
            self._metric_of_f32 = self.metric.of(self._expected)

    def error(self, assignment: Assignment) -> float:
        """The error of a plan. Raises SettingsError if the user's metric fails."""
        if not self._expected:
            self.begin()
        plan = PrecisionPlan(dict(assignment), self.calibration)
        if plan.digest not in self._known:
            self._known[plan.digest] = self.error_of(self._outputs(plan))
        return self._known[plan.digest]

    def error_of(self, outputs: Sequence[dict[str, Array]]) -> float:
        """The error of these outputs for the samples. Raises SettingsError as `error` does."""
        if not self._expected:
            self.begin()
        if self.metric is not None:
            return max(0.0, self._metric_of_f32 - self.metric.of(outputs))
        pairs = zip(outputs, self._expected, strict=True)
        return max(relative_error(actual, expected) for actual, expected in pairs)

    def _outputs(self, plan: PrecisionPlan) -> list[dict[str, Array]]:
        executable = self.compile(*apply_precisions(self.prepared, plan))
        return [dict(executable.run(run)) for run in self.samples]
