"""A step: sum parts of a reduction by themselves, then the parts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.combiners import COMBINERS, neutral_element
from tunefarm.compiler.expr.nodes import Expr, Load, add, binary, cast, index, integer, mul, select
from tunefarm.compiler.expr.walk import substitute
from tunefarm.compiler.kernels.accumulate import widened
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


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
