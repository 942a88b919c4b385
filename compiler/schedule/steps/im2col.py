from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.im2col import im2col
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Im2col(Step):
    """Walk a plane as one axis `first_second`, with what its windows read gathered in a stage.

    for c: for h < 4: for w < 5: for k: for i: y[c, h, w] += x[k, h + i, w] * f[c, k, i]
    ->
    for i: for h_w < 20: for k: g[i, h_w, k] = x[k, h_w // 5 + i, h_w % 5]
    for c: for h_w < 20: for k: for i: y[c, h_w] += g[i, h_w, k] * f[c, k, i]

    Comes before all other steps.
    """

    first: str
    second: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("windows are gathered before all other steps")
        return scheduled.rewritten(im2col(scheduled.kernel, self.first, self.second))
