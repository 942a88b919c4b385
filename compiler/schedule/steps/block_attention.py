from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.kernels.attention import block_attention
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class BlockAttention(Step):
    """Let attention walk over blocks of `keys` keys, which are packed in groups of `lanes`.

    scores[m, n] += q[m, k] * key[n, k]; max[m]; exp[m, n]; sum[m]; weighted[m, d]
    ->
    keys[no, k, nl] = key[no * lanes + nl, k]
    scores[nb, m, n] += q[m, k] * keys[...]; masked[nb, m, n]
    max[m]; exp[nb, m, n]; sum[m]; weighted[m, d]                                  direct
    block.max[nb, m]; exp[nb, m, n]; block.sum[nb, m]; block.weighted[nb, m, d];
    max[m]; factor[nb, m]; sum[m]; weighted[m, d]                                  online

    Comes before all other steps. Rounding differs from the direct form where blocks are `online`.
    """

    keys: int
    lanes: int
    online: bool = False

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("the algorithm is chosen before all other steps")
        kernel = block_attention(scheduled.kernel, self.keys, self.lanes, self.online)
        return scheduled.rewritten(kernel)
