from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.loops.ir import LoopKind
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Unroll(Step):
    """Repeat the body once per value of `axis`, so that its indices become constants.

    for i < 2: y[i] = x[i]     ->     y[0] = x[0]; y[1] = x[1]

    With `edges` false, it stays a loop in tails and in iterations that `Partition` sets apart: they
    run rarely, and their code costs as much to generate as the rest.
    """

    stage: str
    axis: str
    edges: bool = True

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        state.position(self.axis)
        kinds = {**state.kinds, self.axis: LoopKind.UNROLLED}
        inside = state.unrolled_inside if self.edges else state.unrolled_inside | {self.axis}
        return scheduled.with_state(replace(state, kinds=kinds, unrolled_inside=inside))
