from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.winograd import apply_winograd
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Winograd(Step):
    """Compute a 3x3 convolution by Winograd's minimal filtering in tiles of `m` x `m` outputs.

    conv[oh, ow] += pad[oh + kh, ow + kw] * w[kh, kw]
    ->
    data.rows, data.both: B^T d B of each tile of pad
    products[x, y, t] += data.both[x, y, t] * transformed w[x, y]
    output.rows, conv: A^T products A

    With `in_rows` t is two axes, th and tw, so that a block of tiles may be a part of their rows;
    so it always is where rows end at run time. Comes before all other steps. The filter is
    transformed when the model is built. Rounding differs from the direct form.
    """

    m: int
    in_rows: bool = False

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("the algorithm is chosen before all other steps")
        rewritten = apply_winograd(scheduled.kernel, self.m, in_rows=self.in_rows)
        return scheduled.rewritten(rewritten, winograd=self.m)

    def check(self, scheduled: ScheduledKernel) -> None:
        for name, m in scheduled.reshaped.items():
            if m == self.m and name not in scheduled.layouts:
                raise ScheduleError(f"the filter needs PackLayout({name!r}, ..., winograd={m})")
