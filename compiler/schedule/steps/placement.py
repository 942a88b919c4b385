"""Steps that say where a stage is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import index
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.stage import Stage, inline
from tunefarm.compiler.loops.ir import LoopKind, Scope
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import Attachment, StageState
from tunefarm.compiler.schedule.steps.step import Step

STACK_BYTES = 1 << 20
"""That a kernel keeps on a thread's stack for what it computes in a loop, at most: threads of
Linux have 8 MiB by default."""


@dataclass(frozen=True, slots=True)
class Inline(Step):
    """Compute `stage` (no reduction) where it is used instead of storing it.

    for i: pad[i] = select(0 < i, x[i-1], 0)         for i: y[i] = select(0 < i, x[i-1], 0) * 2
    for i: y[i] = pad[i] * 2                     ->
    """

    stage: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        if state.stage.reduce_axes:
            raise ScheduleError("a reduction cannot be inlined")
        if state is scheduled.stages[-1]:
            raise ScheduleError("the output stage cannot be inlined")
        others = (
            replace(other, stage=replace(other.stage, body=inline(other.stage.body, state.stage)))
            for other in scheduled.stages
            if other is not state
        )
        return replace(scheduled, stages=tuple(others))


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """Compute the part of `stage` that one iteration of `consumer`'s loop `axis` needs, there.

    for i: t[i] = f(i)                         for i.o: for i.i: t'[i.i] = f(i.o*4 + i.i)
    for i.o: for i.i: y[...] = t[...]     ->            for i.i: y[...] = t'[i.i]

    `scope` is where t' lives: "register", "stack", or "workspace", where a loop inside of this one
    runs in parallel.
    """

    stage: str
    consumer: str
    axis: str
    scope: str = "stack"

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state, consumer = scheduled.stage(self.stage), scheduled.stage(self.consumer)
        consumer.position(self.axis)
        if scheduled.position(self.stage) >= scheduled.position(self.consumer):
            raise ScheduleError(f"{self.stage} does not come before {self.consumer}")
        if self.scope not in (Scope.REGISTER, Scope.STACK, Scope.WORKSPACE):
            raise ScheduleError(f"unknown scope {self.scope!r} (register, stack or workspace)")
        attachment = Attachment(self.consumer, self.axis)
        return scheduled.with_state(
            replace(state, attachment=attachment, scope=Scope(self.scope), kept=False)
        )

    def check(self, scheduled: ScheduledKernel) -> None:
        if scheduled.stage(self.stage).attachment != Attachment(self.consumer, self.axis):
            return
        consumer = scheduled.stage(self.consumer)
        for loop in consumer.order[: consumer.position(self.axis) + 1]:
            if consumer.kinds.get(loop) is LoopKind.VECTORISED:
                raise ScheduleError(f"the lanes of Vectorize({self.consumer!r}, {loop!r}) share it")


@dataclass(frozen=True, slots=True)
class ComputeAlong(Step):
    """Compute `stage` in `consumer`'s loop `axis`, and keep all of it for whoever reads it later.

    for i: for j: t[i, j] = x[i, j] + 1              for i:
    for i:                                             for j: t'[j] = x[i, j] + 1
      for j: for k: u'[j] += t[i, j] * w[k]     ->            for k: u'[j] += t'[j] * w[k]
      for j: z[i] += t[i, j] * u'[j]                   for j: z[i] += t'[j] * u'[j]

    `consumer` has all axes of `stage` and is itself computed in a loop of another stage (see
    `ComputeAt`), where t' lives as long as u'.
    """

    stage: str
    consumer: str
    axis: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state, consumer = scheduled.stage(self.stage), scheduled.stage(self.consumer)
        consumer.position(self.axis)
        if scheduled.position(self.stage) >= scheduled.position(self.consumer):
            raise ScheduleError(f"{self.stage} does not come before {self.consumer}")
        if not set(state.stage.axes) <= set(consumer.stage.axes):
            raise ScheduleError(f"{self.consumer} lacks an axis of {self.stage}")
        place = Attachment(self.consumer, self.axis)
        return scheduled.with_state(replace(state, attachment=place, scope=Scope.STACK, kept=True))

    def check(self, scheduled: ScheduledKernel) -> None:
        state, consumer = scheduled.stage(self.stage), scheduled.stage(self.consumer)
        if not state.kept or state.attachment != Attachment(self.consumer, self.axis):
            return
        if consumer.attachment is None:
            raise ScheduleError(f"{self.consumer} is not computed in a loop of another stage")
        own = tuple(index(axis.name) for axis in state.stage.axes)
        for reader in scheduled.stages:
            read = [load for load in loads(reader.stage.body) if load.buffer == self.stage]
            within = reader is consumer or scheduled.is_inside(reader, consumer, self.axis)
            if within and any(load.indices != own for load in read):
                raise ScheduleError(f"{reader.name} reads other elements of it in these loops")
            if read and not within and not self._later(scheduled, reader, consumer.attachment):
                raise ScheduleError(f"{reader.name} reads it before it is computed, or elsewhere")

    def _later(self, scheduled: ScheduledKernel, reader: StageState, place: Attachment) -> bool:
        """The reader runs where the consumer is computed, after it."""
        outer = scheduled.stage(place.consumer)
        inside = reader is outer or scheduled.is_inside(reader, outer, place.axis)
        return inside and scheduled.position(reader.name) > scheduled.position(self.consumer)


@dataclass(frozen=True, slots=True)
class StoreInOutput(Step):
    """Store the elements of `stage` where those of the output will be, instead of in memory of
    their own. The output reads each of them once, for its own element.

    for j: e[j] = exp(x[j])                for j: y[j] = exp(x[j])
    for j: s += e[j]                 ->    for j: s += y[j]
    for j: y[j] = e[j] / s                 for j: y[j] = y[j] / s
    """

    stage: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        return scheduled.with_state(replace(scheduled.stage(self.stage), in_output=True))

    def check(self, scheduled: ScheduledKernel) -> None:
        state, output = scheduled.stage(self.stage), scheduled.stages[-1]
        if not state.in_output:
            return
        if not goes_to_output(state.stage, output.stage):
            raise ScheduleError(f"the output has other elements, or reads more of {self.stage}")
        if any(split.tail == "shift" for split in output.splits.values()):
            raise ScheduleError("shifted tiles of the output read what they have written")
        for other in scheduled.stages[:-1]:
            uses = other is state or any(
                load.buffer == self.stage for load in loads(other.stage.body)
            )
            if uses and _place_in(scheduled, other, output) != state.attachment:
                raise ScheduleError(f"{other.name} is computed in other loops of the output")


def goes_to_output(stage: Stage, output: Stage) -> bool:
    """Whether elements of the stage can lie in the output until each becomes the one there."""
    own = tuple(index(axis.name) for axis in output.axes)
    read = [load.indices for load in loads(output.body) if load.buffer == stage.name]
    return (
        not (output.reduce_axes or stage.reduce_axes)
        and (stage.dtype, stage.shape) == (output.dtype, output.shape)
        and bool(read)
        and all(indices == own for indices in read)
    )


def _place_in(
    scheduled: ScheduledKernel, state: StageState, output: StageState
) -> Attachment | None:
    """The loop of the output that a stage is computed in, itself or inside of other stages."""
    place = state.attachment
    while place is not None and place.consumer != output.name:
        place = scheduled.stage(place.consumer).attachment
    return place
