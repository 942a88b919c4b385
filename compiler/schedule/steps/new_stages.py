"""Steps that make a stage of a part of another one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine, affine_range
from tunefarm.compiler.expr.nodes import Expr, Load, index
from tunefarm.compiler.expr.parts import parts_that_read, parts_without
from tunefarm.compiler.expr.walk import axes_of, loads, rewrite, transform
from tunefarm.compiler.kernels.accumulate import apart
from tunefarm.compiler.kernels.kernel import Buffer
from tunefarm.compiler.kernels.stage import Axis, Stage
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


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """Split the output stage in two: `result` accumulates, `stage` copies it out.

    for i: for k: y[i] += a[i, k]      ->      for i: for k: result[i] += a[i, k]
                                               for i: y[i] = result[i]

    `result` has the axes of `stage` and the type of its accumulator; usually a `ComputeAt` in
    registers follows.
    """

    stage: str
    result: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "the cache must be made before other steps touch the stage"
        )
        return scheduled.with_stages(stage.name, *apart(stage, self.result))


@dataclass(frozen=True, slots=True)
class CopyOperand(Step):
    """Copy `buffer`, an input or a stage, to a stage `result`, which `stage` then reads.

    for i: for k: y[i] += x[k, i]     ->     for d0: for d1: t[d0, d1] = x[d0, d1]
                                            for i: for k: y[i] += t[k, i]

    The copy has the axes d0, d1… Usually a `PackStage` or a `ComputeAt` follows, so that what is
    read many times is read in the best order, or held in registers.
    """

    stage: str
    buffer: str
    result: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "an operand is copied before other steps touch the stage that reads it"
        )
        made = {state.name: state.stage for state in scheduled.stages}
        source = made.get(self.buffer) or scheduled.input(self.buffer)
        if isinstance(source, Buffer) and source.constant:
            raise ScheduleError(f"{self.buffer} is a constant: PackLayout arranges it for nothing")
        axes = tuple(Axis(f"d{number}", extent) for number, extent in enumerate(source.shape))
        element = Load(source.dtype, self.buffer, tuple(index(axis.name) for axis in axes))

        def copied(node: Expr) -> Expr:
            if not isinstance(node, Load) or node.buffer != self.buffer:
                return node
            return replace(node, buffer=self.result)

        body = rewrite(stage.body, copied)
        if body is stage.body:
            raise ScheduleError(f"{self.stage} does not read {self.buffer}")
        return scheduled.with_stages(
            stage.name, Stage(self.result, axes, (), "", element), replace(stage, body=body)
        )


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
