"""Steps that make a stage of a part of another one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine, affine_range
from tunefarm.compiler.expr.combiners import COMBINERS, neutral_element
from tunefarm.compiler.expr.nodes import Expr, Load, add, binary, cast, index, integer, mul, select
from tunefarm.compiler.expr.parts import parts_that_read, parts_without
from tunefarm.compiler.expr.walk import axes_of, loads, rewrite, substitute, transform
from tunefarm.compiler.kernels.accumulate import apart, widened
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


@dataclass(frozen=True, slots=True)
class SplitReduction(Step):
    """Reduce in `lanes` independent partial results, then combine them: the vector form of a sum.

    for i: for k < 19: s[i] += x[i, k]
    ->
    for i: for k.o < 2: for k.l < 8: s.lanes[i, k.l] += x[i, k.o*8 + k.l]
    for i: for k.l < 8: s.sum[i] += s.lanes[i, k.l]
    for i: for k.t < 3: s.tail[i] += x[i, 16 + k.t]
    for i: s[i] = s.sum[i] + s.tail[i]

    Without a tail `s` itself combines the lanes, unless it has an accumulator: all but `s` are of
    that type. Needs extent >= lanes. Where there is a stage `s.lanes` already, the partial results
    are called `s.lanes_1`, and so on.

    With `masked`, nothing is left over: the last step combines nothing in the lanes beyond the end.

    for i: for k.o < 3: for k.l < 8: s.lanes[i, k.l] += x[i, k.o*8 + k.l] if k.o*8 + k.l < 19
    for i: for k.l < 8: s[i] += s.lanes[i, k.l]
    """

    stage: str
    axis: str
    lanes: int
    masked: bool = False

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "a reduction must be split before other steps touch the stage"
        )
        extent = self._extent(stage)
        blocks, rest = divmod(extent, self.lanes)
        beyond = rest > 0 and self.masked
        if beyond:
            blocks, rest = blocks + 1, 0
        if blocks == 0:
            raise ScheduleError(f"extent {extent} is below {self.lanes} lanes")
        others = tuple(axis for axis in stage.reduce_axes if axis.name != self.axis)
        spatial = tuple(index(item.name) for item in stage.axes)
        outer, lane, tail = f"{self.axis}.o", f"{self.axis}.l", f"{self.axis}.t"
        term = widened(stage.body, stage.combiner, stage.accumulates)
        whole = rest == 0 and term.dtype is stage.dtype

        def at(value: Expr) -> Expr:
            return substitute(term, {self.axis: value})

        position = add(mul(index(outer), integer(self.lanes)), index(lane))
        part = at(position)
        if beyond:
            neutral = neutral_element(stage.combiner, term.dtype)
            part = select(binary("lt", position, integer(extent)), part, neutral)
        taken = {other.name for other in scheduled.stages}
        names = (f"{stage.name}.lanes{f'_{count}' if count else ''}" for count in itertools.count())
        partial = Stage(
            next(name for name in names if name not in taken),
            (*stage.axes, Axis(lane, self.lanes)),
            (*others, Axis(outer, blocks)),
            stage.combiner,
            part,
        )
        total = Stage(
            stage.name if whole else f"{stage.name}.sum",
            stage.axes,
            (Axis(lane, self.lanes),),
            stage.combiner,
            Load(term.dtype, partial.name, (*spatial, index(lane))),
        )
        made = [partial, total]
        if whole:
            return scheduled.with_stages(stage.name, *made)
        combined: Expr = Load(term.dtype, total.name, spatial)
        if rest:
            leftover = Stage(
                f"{stage.name}.tail",
                stage.axes,
                (*others, Axis(tail, rest)),
                stage.combiner,
                at(add(integer(blocks * self.lanes), index(tail))),
            )
            made.append(leftover)
            operation = COMBINERS[stage.combiner].operation
            combined = binary(operation, combined, Load(term.dtype, leftover.name, spatial))
        made.append(Stage(stage.name, stage.axes, (), "", cast(stage.dtype, combined)))
        return scheduled.with_stages(stage.name, *made)

    def _extent(self, stage: Stage) -> int:
        """The extent of the axis that is split. Raises ScheduleError if it cannot be."""
        extents = {axis.name: axis.extent for axis in stage.reduce_axes}
        if self.axis not in extents:
            raise ScheduleError(f"{self.axis} is no reduce axis of {stage.name}")
        if self.lanes < 1:
            raise ScheduleError("there must be at least 1 lane")
        return extents[self.axis]
