from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.loops.ir import LoopKind
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Vectorize(Step):
    """Make `axis` the elements of a vector register.

    for i < 8: y[i] = x[i] + 1     ->     y[0:8] = x[0:8] + 1
    """

    stage: str
    axis: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        state.position(self.axis)
        if self.axis in state.reduce:
            raise ScheduleError("a reduce axis cannot be vectorised (see SplitReduction)")
        if LoopKind.VECTORISED in state.kinds.values():
            raise ScheduleError("the stage is vectorised already")
        kinds = {**state.kinds, self.axis: LoopKind.VECTORISED}
        return scheduled.with_state(replace(state, kinds=kinds))
