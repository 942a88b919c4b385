from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.merge_axes import merge_axes
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class MergeAxes(Step):
    """Make one axis `first_second` of two adjacent output axes that are only walked together.

    for i < 4: for j < 5: y[i, j] = x[i, j] + 1     ->     for i_j < 20: y[i_j] = x[i_j] + 1

    Comes before all other steps.
    """

    first: str
    second: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("axes are merged before all other steps")
        return scheduled.rewritten(merge_axes(scheduled.kernel, self.first, self.second))
