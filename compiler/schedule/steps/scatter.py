"""Step: walk along a scatter's updates once, instead of searching each element's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.scatter import scatter_of
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import ScatteredAxis, StageState
from tunefarm.compiler.schedule.steps.step import Step


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
