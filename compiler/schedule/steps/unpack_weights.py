from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.unpack_weights import apply_unpack_weights
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class UnpackWeights(Step):
    """Unpack weights of a few bits to floats once for all rows of the data.

    for m, n: for k: y[m, n] += x[m, k] * (unpacked w[k, n]) * scale[n]
    ->
    for word, place, n: weights[word, place, n] = (unpacked w[word, n]) * scale[n]
    for m, n: for word, place: y[m, n] += x[m, word * 4 + place] * weights[word, place, n]

    Comes before all other steps but those that merge axes.
    """

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("weights are unpacked before all other steps")
        return scheduled.rewritten(apply_unpack_weights(scheduled.kernel))
