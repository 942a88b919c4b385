from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.flatten_axes import flatten_axes
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class FlattenAxes(Step):
    """Walk two adjacent axes of the result as one, `first_second`, whatever is read along them.

    for i < 4: for j < 3: y[i, j] = x[j, i]     ->     for i_j < 12: y[i_j] = x[i_j % 3, i_j // 3]

    Comes before all other steps but those that merge axes.
    """

    first: str
    second: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("axes are flattened before all other steps")
        return scheduled.rewritten(flatten_axes(scheduled.kernel, self.first, self.second))
