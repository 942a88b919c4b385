"""Steps that walk along an axis once, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.running import running_reduction
from tunefarm.compiler.kernels.scatter import scatter_of
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.loops.ir import LoopKind
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import ScannedAxis, ScatteredAxis, StageState
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Scan(Step):
    """Walk along the axis of a running reduction once, and carry what was combined so far.

    for i: for j: for r: y[i, j] += x[i, r] if r <= j
    ->
    for i: c = 0; for j: c += x[i, j]; y[i, j] = c

    Loops over the axis stay in order: they may be tiled, unrolled and vectorised (a vector's
    elements are combined among themselves first), but neither exchanged nor run in parallel.
    """

    stage: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        stage = scheduled.untouched_stage(
            self.stage, "a running reduction must be walked before other steps touch the stage"
        )
        running = running_reduction(stage)
        if running is None:
            raise ScheduleError(f"{stage.name} is no running reduction")
        scanned = ScannedAxis(running.axis, stage.combiner, running.exclusive, running.reverse)
        return scheduled.with_state(replace(StageState.of(running.walked(stage)), scanned=scanned))

    def check(self, scheduled: ScheduledKernel) -> None:
        state = scheduled.stage(self.stage)
        scanned = state.scanned
        assert scanned is not None
        axis = scanned.axis
        fused = [loop for loop, parts in state.fusions.items() if _any_part(state, parts, axis)]
        if fused:
            raise ScheduleError(f"{fused[0]} fuses the scanned axis {axis} with others")
        for loop in state.order:
            if state.is_part(loop, axis) and state.is_parallel(loop):
                raise ScheduleError(f"loop {loop} is walked in order, not in parallel")
            inside = state.order[state.position(loop) + 1 :]
            vector = state.kinds.get(loop) is LoopKind.VECTORISED
            if vector and _any_part(state, inside, axis):
                raise ScheduleError(f"the scanned axis {axis} is inside of the vector {loop}")
        for split in state.splits.values():
            if not state.is_part(split.inner, axis):
                continue
            if split.tail != "peel":
                raise ScheduleError(f"tiles of the scanned axis {axis} can only be peeled")
            if _first(state, split.outer) > _first(state, split.inner):
                raise ScheduleError(f"{split.outer} is inside of {split.inner}")


def _any_part(state: StageState, loops: tuple[str, ...], axis: str) -> bool:
    return any(state.is_part(loop, axis) for loop in loops)


def _first(state: StageState, loop: str) -> int:
    """Where the outermost loop that is a part of this one is in the order."""
    split = state.splits.get(loop)
    if split is None:
        return state.position(loop)
    return min(_first(state, split.outer), _first(state, split.inner))


@dataclass(frozen=True, slots=True)
class Scatter(Step):
    """Write the data to all of `stage`, then update it in order at the positions that are read.

    for i: for c: hits = 0
                  for u: hits += value[i, u] if position[i, u] == c
                  y[i, c] = data[i, c] + hits
    ->
    for i: for c: y[i, c] = data[i, c]
           for u: if 0 <= position[i, u] < 512: y[i, position[i, u]] += value[i, u]

    Loops over the scattered axis and over the updates are neither parallel nor fused: what two
    threads wrote to one place would be lost. Lanes that have a position each alternate.
    """

    stage: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("a scatter must be walked before other steps touch the kernel")
        scatter = scatter_of(scheduled.kernel)
        if scatter is None or scatter.output.name != self.stage:
            raise ScheduleError(f"{self.stage} is no scatter")
        output, updates = scatter.output, scatter.updates
        walked = Stage(output.name, output.axes, (updates,), scatter.combiner, scatter.value)
        scattered = ScatteredAxis(scatter.axis, scatter.seed, scatter.position)
        state = replace(StageState.of(walked), scattered=scattered)
        return replace(scheduled, stages=(state,))

    def check(self, scheduled: ScheduledKernel) -> None:
        state = scheduled.stage(self.stage)
        scattered = state.scattered
        assert scattered is not None
        walked = {loop for loop in state.order if state.is_part(loop, scattered.axis)}
        walked |= state.reduce
        for fused, parts in state.fusions.items():
            if any(part in state.reduce or state.is_part(part, scattered.axis) for part in parts):
                raise ScheduleError(f"{fused} fuses loops over updates, or where they go")
        for loop in walked:
            if state.is_parallel(loop):
                raise ScheduleError(f"loop {loop} is walked in order, not in parallel")
        if any(split.tail != "peel" for split in state.splits.values()):
            raise ScheduleError("the tiles of a scatter can only be peeled")
