"""Step: sum the terms along an axis by a dot product of narrow factors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import DottedAxis
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class DotProduct(Step):
    """Sum the terms along `axis`, the innermost loop of a reduction, by one dot product.

    for i: for k < 4: y[i] += i32(a[i, k]) * i32(b[k])
    ->
    for i: y[i] += dot over k in 0..4 of a[i, k], b[k]

    A term is the product of two factors that are converted from narrower types. With `widened`
    each factor is converted on its own, whatever dot products the target has.
    """

    stage: str
    axis: str
    widened: bool = False

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        if state.position(self.axis) != len(state.order) - 1 or self.axis not in state.reduce:
            raise ScheduleError(f"{self.axis} is not the innermost reduce axis of {self.stage}")
        stage = state.stage
        if stage.combiner != "sum" or stage.accumulator is not None:
            raise ScheduleError(f"{self.stage} is no sum in the type of its terms")
        if self.axis in state.fusions or self.axis in state.kinds:
            raise ScheduleError(f"{self.axis} is a loop of another kind already")
        if narrow_factors(stage.body) is None:
            raise ScheduleError(f"the terms of {self.stage} are no products of narrower factors")
        return scheduled.with_state(replace(state, dotted=DottedAxis(self.axis, self.widened)))
