from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Prefetch(Step):
    """Ask for the vectors of an input `distance` elements ahead of where they are read.

    for k: c += w[k] * x[k]     ->     for k: prefetch w[k + distance]; c += w[k] * x[k]

    Worth a try where an input streams through an unrolled body, or through matrix tiles, from an
    outer cache.
    """

    buffer: str
    distance: int

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.input(self.buffer)
        if self.distance < 1:
            raise ScheduleError("the prefetch distance must be at least 1 element")
        prefetches = {**scheduled.prefetches, self.buffer: self.distance}
        return replace(scheduled, prefetches=prefetches)
