"""Steps that say how a loop runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.loops.ir import Ahead, LoopKind
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import DottedAxis, StageState
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Unroll(Step):
    """Repeat the body once per value of `axis`, so that its indices become constants.

    for i < 2: y[i] = x[i]     ->     y[0] = x[0]; y[1] = x[1]

    With `edges` false, it stays a loop in tails and in iterations that `Partition` sets apart: they
    run rarely, and their code costs as much to generate as the rest.
    """

    stage: str
    axis: str
    edges: bool = True

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        state.position(self.axis)
        kinds = {**state.kinds, self.axis: LoopKind.UNROLLED}
        inside = state.unrolled_inside if self.edges else state.unrolled_inside | {self.axis}
        return scheduled.with_state(replace(state, kinds=kinds, unrolled_inside=inside))


@dataclass(frozen=True, slots=True)
class Vectorize(Step):
    """Make `axis` the elements of a vector register.

    for i < 8: y[i] = x[i] + 1     ->     y[0:8] = x[0:8] + 1
    """

    stage: str
    axis: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        state.position(self.axis)
        if self.axis in state.reduce:
            raise ScheduleError("a reduce axis cannot be vectorised (see SplitReduction)")
        if LoopKind.VECTORISED in state.kinds.values():
            raise ScheduleError("the stage is vectorised already")
        kinds = {**state.kinds, self.axis: LoopKind.VECTORISED}
        return scheduled.with_state(replace(state, kinds=kinds))


@dataclass(frozen=True, slots=True)
class Parallelize(Step):
    """Run `axis`, the outermost loop, on all threads in `chunks` pieces per thread.

    for i: y[i]     ->     parallel for i: y[i]

    Inside of the steps of a recurrence another loop may run in parallel, one of each of its stages:
    all threads meet after each. What is computed for it outside is then in the workspace, which
    they share.
    """

    stage: str
    axis: str
    chunks: int = 1

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        outside = state.order[: state.position(self.axis)]
        if (outside and not _walks(scheduled, state, outside)) or self.axis in state.reduce:
            raise ScheduleError("only the outermost loop over an output axis runs in parallel")
        if self.chunks < 1:
            raise ScheduleError("each thread must get at least 1 chunk")
        kinds = {**state.kinds, self.axis: LoopKind.PARALLEL}
        return scheduled.with_state(replace(state, kinds=kinds, chunks=self.chunks))


@dataclass(frozen=True, slots=True)
class Alternate(Step):
    """Walk a serial loop over an output axis from its end in every second round of the loop `by`.

    for t: for i < 4: y[t, i]     ->     for t: for i < 4: let j = t % 2 == 0 ? i : 3 - i: y[t, j]

    What the last iterations of a round have read is still in the cache for the first ones of the
    next, where all that a round reads is more than the cache holds.
    """

    stage: str
    axis: str
    by: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        state.position(self.axis)
        if self.axis in state.reduce or self.axis in state.fusions:
            raise ScheduleError(f"{self.axis} is no part of one output axis")
        if self.by not in {axis.name for axis in state.stage.axes} or self.by in state.splits:
            raise ScheduleError(f"{self.by} is no whole output axis")
        alternating = {**state.alternating, self.axis: self.by}
        return scheduled.with_state(replace(state, alternating=alternating))

    def check(self, scheduled: ScheduledKernel) -> None:
        state = scheduled.stage(self.stage)
        if self.by not in state.order[: state.position(self.axis)]:
            raise ScheduleError(f"the loop {self.axis} is not inside of {self.by}")
        if state.kinds.get(self.axis, LoopKind.SERIAL) is not LoopKind.SERIAL:
            raise ScheduleError(f"the loop {self.axis} is not serial")


def _walks(scheduled: ScheduledKernel, state: StageState, loops: tuple[str, ...]) -> bool:
    """The loops are serial, and steps of the recurrence that the stage is of are among them."""
    recurrence = recurrence_of(scheduled.kernel)
    serial = all(state.kinds.get(loop, LoopKind.SERIAL) is LoopKind.SERIAL for loop in loops)
    if recurrence is None or state.name not in recurrence.stages:
        return False
    return serial and recurrence.axis in loops


@dataclass(frozen=True, slots=True)
class DotProduct(Step):
    """Sum the terms along `axis`, the innermost loop of a reduction, by one dot product.

    for i: for k < 4: y[i] += i32(a[i, k]) * i32(b[k])
    ->
    for i: y[i] += dot over k in 0..4 of a[i, k], b[k]

    A term is the product of two factors that are converted from narrower types. With `widened`
    each factor is converted on its own, whatever dot products the target has.
    """

    stage: str
    axis: str
    widened: bool = False

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        if state.position(self.axis) != len(state.order) - 1 or self.axis not in state.reduce:
            raise ScheduleError(f"{self.axis} is not the innermost reduce axis of {self.stage}")
        stage = state.stage
        if stage.combiner != "sum" or stage.accumulator is not None:
            raise ScheduleError(f"{self.stage} is no sum in the type of its terms")
        if self.axis in state.fusions or self.axis in state.kinds:
            raise ScheduleError(f"{self.axis} is a loop of another kind already")
        if narrow_factors(stage.body) is None:
            raise ScheduleError(f"the terms of {self.stage} are no products of narrower factors")
        return scheduled.with_state(replace(state, dotted=DottedAxis(self.axis, self.widened)))


@dataclass(frozen=True, slots=True)
class Prefetch(Step):
    """Ask for the vectors of an input `distance` elements ahead of where they are read.

    for k: c += w[k] * x[k]     ->     for k: prefetch w[k + distance]; c += w[k] * x[k]

    Worth a try where an input streams through an unrolled body, or through matrix tiles, from an
    outer cache.

    Of an input that a stage copies, tile by tile, they are asked for where the `copy` is read:

    t[0..4] = w[k..k+4]; for i < 4: c += t[i] * x[k + i]
    ->
    t[0..4] = w[k..k+4]; for i < 4: prefetch w[k + i + distance]; c += t[i] * x[k + i]

    A copy is made in a burst, which waits for memory, while memory waits for what reads the copy.
    """

    buffer: str
    distance: int
    copy: str = ""

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.input(self.buffer)
        if self.distance < 1:
            raise ScheduleError("the prefetch distance must be at least 1 element")
        if not self.copy:
            prefetches = {**scheduled.prefetches, self.buffer: self.distance}
            return replace(scheduled, prefetches=prefetches)
        stage = scheduled.stage(self.copy).stage
        first = next((load for load in loads(stage.body) if load.buffer == self.buffer), None)
        if first is None or stage.reduce_axes:
            raise ScheduleError(f"{self.copy} is no copy of {self.buffer}")
        copies = {**scheduled.copies, self.copy: Ahead(first, self.distance)}
        return replace(scheduled, copies=copies)

    def check(self, scheduled: ScheduledKernel) -> None:
        if self.copy and scheduled.stage(self.copy).attachment is None:
            raise ScheduleError(f"{self.copy} is not computed in a loop of another stage")
