from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.accumulate import apart
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """Split the output stage in two: `result` accumulates, `stage` copies it out.

    for i: for k: y[i] += a[i, k]      ->      for i: for k: result[i] += a[i, k]
                                               for i: y[i] = result[i]

    `result` has the axes of `stage` and the type of its accumulator; usually a `ComputeAt` in
    registers follows.
    """

    stage: str
    result: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "the cache must be made before other steps touch the stage"
        )
        return scheduled.with_stages(stage.name, *apart(stage, self.result))
