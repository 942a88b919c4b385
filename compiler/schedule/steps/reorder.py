from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Reorder(Step):
    """Put the loops of `stage` in this order, outermost first; all its axes are named.

    for i: for j: y[i, j]     ->     for j: for i: y[i, j]
    """

    stage: str
    axes: tuple[str, ...]

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        if sorted(self.axes) != sorted(state.order):
            raise ScheduleError(f"{self.axes} is no permutation of the loops {state.order}")
        return scheduled.with_state(replace(state, order=self.axes))
