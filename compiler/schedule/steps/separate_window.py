from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine, affine_range
from tunefarm.compiler.expr.nodes import Load, index
from tunefarm.compiler.expr.walk import axes_of, loads, transform
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class SeparateWindow(Step):
    """Reduce windows across `axis` first, to a stage `result`, and then along it.

    for h: for w: for k: for l: y[h, w] = max(y[h, w], x[h + k, w + l])
    ->
    for h: for w_i: for k: result[h, w_i] = max(result[h, w_i], x[h + k, w_i])
    for h: for w: for l: y[h, w] = max(y[h, w], result[h, w + l])

    Neighbouring windows share what is reduced across: k + l terms instead of k * l.
    """

    stage: str
    axis: str
    result: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "windows are separated before other steps touch the stage"
        )
        if stage.accumulator is not None:
            raise ScheduleError(f"{stage.name} has an accumulator of another type")
        found = {
            item
            for load in loads(stage.body)
            for item in load.indices
            if self.axis in axes_of(item)
        }
        if len(found) != 1:
            raise ScheduleError(f"{stage.name} does not move along {self.axis} in one way")
        (moving,) = found
        names = axes_of(moving)
        along = tuple(axis for axis in stage.reduce_axes if axis.name in names)
        across = tuple(axis for axis in stage.reduce_axes if axis.name not in names)
        if not along or not across or names != {self.axis, *(axis.name for axis in along)}:
            raise ScheduleError(f"the windows of {stage.name} have no part across {self.axis}")
        ranges = {axis.name: (0, axis.extent - 1) for axis in (*stage.axes, *along)}
        low, high = affine_range(affine(moving, ranges), ranges)
        inner = Axis(f"{self.axis}_i", high + 1)
        body = transform(stage.body, lambda node: index(inner.name) if node == moving else None)
        if low < 0 or axes_of(body) & names:
            raise ScheduleError(f"{stage.name} uses the value of {self.axis}")
        axes = tuple(inner if axis.name == self.axis else axis for axis in stage.axes)
        places = (moving if axis.name == self.axis else index(axis.name) for axis in stage.axes)
        rows = Stage(self.result, axes, across, stage.combiner, body)
        rest = replace(stage, reduce_axes=along, body=Load(body.dtype, rows.name, tuple(places)))
        return scheduled.with_stages(stage.name, rows, rest)
