from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.merge_axes import merge_reduce_axes
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class MergeReduceAxes(Step):
    """Make one axis `first_second` of two adjacent reduce axes of `stage`, as `MergeAxes` does.

    for k < 4: for l < 5: s += x[k, l]     ->     for k_l < 20: s += x[k_l]

    Comes before all other steps but `MergeAxes`.
    """

    stage: str
    first: str
    second: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("axes are merged before all other steps")
        kernel = merge_reduce_axes(scheduled.kernel, self.stage, self.first, self.second)
        return scheduled.rewritten(kernel)
