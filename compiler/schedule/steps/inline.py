from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.inline import inline
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Inline(Step):
    """Compute `stage` (no reduction) where it is used instead of storing it.

    for i: pad[i] = select(0 < i, x[i-1], 0)         for i: y[i] = select(0 < i, x[i-1], 0) * 2
    for i: y[i] = pad[i] * 2                     ->
    """

    stage: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        if state.stage.reduce_axes:
            raise ScheduleError("a reduction cannot be inlined")
        if state is scheduled.stages[-1]:
            raise ScheduleError("the output stage cannot be inlined")
        others = (
            replace(other, stage=replace(other.stage, body=inline(other.stage.body, state.stage)))
            for other in scheduled.stages
            if other is not state
        )
        return replace(scheduled, stages=tuple(others))
