from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.limb_dot import DIGITS, apply_limb_dot
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class DigitSums(Step):
    """Sum a product with packed weights up in integers, of data in three digits, or in one.

    y[n] += x[k] * (unpacked w[k, n]) * scale[n]
    ->
    exponents, units, digits: x in whole units of its chunk, and their digits
    parts[digit, n] += digits[digit, k] * field k of w[n]
    y[n] += unit * scale[n] * (parts[2, n] * 65536 + parts[1, n] * 256 + parts[0, n])

    Comes before all other steps. Rounding differs from the direct form: with one digit, data is
    rounded to 8 bits.
    """

    digits: int = DIGITS

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("the algorithm is chosen before all other steps")
        return scheduled.rewritten(apply_limb_dot(scheduled.kernel, self.digits))
