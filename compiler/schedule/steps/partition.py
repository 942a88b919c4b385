from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import RangeCuts
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Partition(Step):
    """Split the loop's range so that `first` and `last` iterations stand alone, and at `cuts`.

    for i < 9: body     ->     body(0); for 1 <= i < 8: body(i); body(8)
    for i < 9: body     ->     for i < 4: body(i); for 4 <= i < 9: body(i)     (0, 0, cuts (4,))

    Guards of padding are then decided at compile time in the middle part.
    """

    stage: str
    axis: str
    first: int = 1
    last: int = 1
    cuts: tuple[int, ...] = ()

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        state.position(self.axis)
        if self.first < 0 or self.last < 0:
            raise ScheduleError("the number of iterations that stand alone cannot be negative")
        cuts = {**state.cuts, self.axis: RangeCuts(self.first, self.last, self.cuts)}
        return scheduled.with_state(replace(state, cuts=cuts))
