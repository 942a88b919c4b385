from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.loops.ir import LoopKind
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import StageState
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Parallelize(Step):
    """Run `axis`, the outermost loop, on all threads in `chunks` pieces per thread.

    for i: y[i]     ->     parallel for i: y[i]

    Inside of the steps of a recurrence another loop may run in parallel, one of each of its stages:
    all threads meet after each. What is computed for it outside is then in the workspace, which
    they share.
    """

    stage: str
    axis: str
    chunks: int = 1

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        outside = state.order[: state.position(self.axis)]
        if (outside and not _walks(scheduled, state, outside)) or self.axis in state.reduce:
            raise ScheduleError("only the outermost loop over an output axis runs in parallel")
        if self.chunks < 1:
            raise ScheduleError("each thread must get at least 1 chunk")
        kinds = {**state.kinds, self.axis: LoopKind.PARALLEL}
        return scheduled.with_state(replace(state, kinds=kinds, chunks=self.chunks))


def _walks(scheduled: ScheduledKernel, state: StageState, loops: tuple[str, ...]) -> bool:
    """The loops are serial, and steps of the recurrence that the stage is of are among them."""
    recurrence = recurrence_of(scheduled.kernel)
    serial = all(state.kinds.get(loop, LoopKind.SERIAL) is LoopKind.SERIAL for loop in loops)
    if recurrence is None or state.name not in recurrence.stages:
        return False
    return serial and recurrence.axis in loops
