from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """Make one axis `name` of adjacent axes, to give a parallel loop more iterations.

    for i < 4: for j < 5: y[i, j]     ->     for f < 20: y[f // 5, f % 5]
    """

    stage: str
    axes: tuple[str, ...]
    name: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        if not self.axes:
            raise ScheduleError("there must be loops to fuse")
        order = state.order_with(self.axes, (self.name,))
        if state.reduce.intersection(self.axes):
            raise ScheduleError("reduce axes cannot be fused")
        fusions = {**state.fusions, self.name: self.axes}
        return scheduled.with_state(replace(state, order=order, fusions=fusions))
