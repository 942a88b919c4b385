from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.errors import ScheduleError
from compiler.loops.ir import LoopKind
from compiler.loops.scheduled_kernel import ScheduledKernel
from compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Parallelize(Step):
    """Run `axis`, the outermost loop, on all threads in `chunks` pieces per thread.

    for i: y[i]     ->     parallel for i: y[i]
    """

    stage: str
    axis: str
    chunks: int = 1

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        if state.position(self.axis) != 0 or self.axis in state.reduce:
            raise ScheduleError("only the outermost loop over an output axis runs in parallel")
        if self.chunks < 1:
            raise ScheduleError("each thread must get at least 1 chunk")
        kinds = {**state.kinds, self.axis: LoopKind.PARALLEL}
        return scheduled.with_state(replace(state, kinds=kinds, chunks=self.chunks))
