from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.parts import parts_without
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Hoist(Step):
    """Give the first part of `stage` that is computed without `axis` a stage `result` of its own.

    for i: for j: y[i, j] = x[i, j] * (1 / s[i])     ->     for i: t[i] = 1 / s[i]
                                                           for i: for j: y[i, j] = x[i, j] * t[i]

    `result` has the other axes that the part mentions; usually a `ComputeAt` follows.
    """

    stage: str
    axis: str
    result: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "parts are hoisted before other steps touch the stage"
        )
        reduce = {axis.name for axis in stage.reduce_axes}
        if self.axis not in reduce | {axis.name for axis in stage.axes}:
            raise ScheduleError(f"{self.axis} is no axis of {stage.name}")
        parts = parts_without(stage.body, {self.axis, *reduce})
        if not parts:
            raise ScheduleError(f"no part of {stage.name} is computed without {self.axis}")
        mentioned = axes_of(parts[0])
        axes = tuple(axis for axis in stage.axes if axis.name in mentioned)
        return scheduled.with_part(stage, parts[0], self.result, axes)
