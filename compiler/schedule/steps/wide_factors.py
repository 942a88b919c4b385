from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.wide_factors import apply_wide_factors
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class WideFactors(Step):
    """Multiply numbers of 16 bits instead of bytes, converted once for all their uses.

    for i: for k: y[i] += i32(x[i + k]) * i32(w[k])
    ->
    for i: wide[i] = i16(x[i])
    for i: for k: y[i] += i32(wide[i + k]) * i32(i16(w[k]))

    Comes before all other steps but those that merge axes.
    """

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("factors are made wide before all other steps")
        return scheduled.rewritten(apply_wide_factors(scheduled.kernel))
