from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.parts import parts_that_read
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class CacheRead(Step):
    """Give the part of `stage` that reads `buffer` a stage `result` with `axes` in this order.

    for i: for j: y[i, j] = x[j, i] * 2 + b[j]     ->     for j: for i: t[j, i] = x[j, i] * 2
                                                         for i: for j: y[i, j] = t[j, i] + b[j]

    The part is the largest expression that loads from nothing else. Where x is contiguous along an
    axis that is not the last of y, `result` can be computed in vectors along it.
    """

    stage: str
    buffer: str
    result: str
    axes: tuple[str, ...]

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "the cache must be made before other steps touch the stage"
        )
        by_name = {axis.name: axis for axis in stage.axes}
        if sorted(self.axes) != sorted(by_name):
            raise ScheduleError(f"{self.axes} is no permutation of the axes of {stage.name}")
        parts = set(parts_that_read(stage.body, self.buffer))
        if not parts:
            raise ScheduleError(f"no part of {stage.name} can read {self.buffer} on its own")
        if len(parts) > 1:
            raise ScheduleError(f"{stage.name} reads {self.buffer} in several ways")
        (part,) = parts
        if axes_of(part) & {axis.name for axis in stage.reduce_axes}:
            raise ScheduleError(f"{stage.name} reads {self.buffer} along a reduce axis")
        axes = tuple(by_name[name] for name in self.axes)
        return scheduled.with_part(stage, part, self.result, axes)
