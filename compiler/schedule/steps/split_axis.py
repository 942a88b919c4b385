from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.split_axis import split_axis
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class SplitAxis(Step):
    """Make two axes `axis_q`, `axis_r` of an axis of the result: quotient and rest by `factor`.

    for w < 8: y[w] = x[w // 2]     ->     for w_q < 4: for w_r < 2: y[w_q, w_r] = x[w_q]

    Comes before all other steps; `factor` divides the extent. Where the rest says which terms are
    summed, as the phase of a stride, each of its values has loops of its own terms.
    """

    axis: str
    factor: int

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("axes are split before all other steps")
        return scheduled.rewritten(split_axis(scheduled.kernel, self.axis, self.factor))
