"""Step: sum products of narrow factors in matrix tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.loops.ir import LoopKind
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import TiledAxes
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class MatrixTiles(Step):
    """Run the four innermost loops of a reduction as products of matrix tiles.

    for k.o: for i.i: for k.s: for j.i: for k.t:
        y[i.i, j.i] += i32(a[i.i, k.o * 64 + k.s * 4 + k.t]) * i32(b[k.o * 16 + k.s, j.i, k.t])
    ->
    tile y.sums[16, 16] = 0
    for k.o: tile y.left = rows a[0, k.o * 64]; tile y.right = rows b[k.o * 16, 0, 0]
        tile y.sums += dot of y.left, y.right
    rows y[0, 0] = tile y.sums

    They go over the `rows` of the left factor, the `steps` of the sum, the `lanes` of the right
    factor and the `terms` of a step, whose factors have 4 bytes. Unrolled loops of the rows and the
    lanes may lie between them and those of the sum: for each of their points there is a tile. The
    steps may come in `groups`, by a loop that is next to that of the rows.
    """

    stage: str
    rows: str
    steps: str
    lanes: str
    terms: str
    groups: str = ""

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        tiled = TiledAxes(self.rows, self.groups, self.steps, self.lanes, self.terms)
        loops = tiled.loops
        if state.order[-len(loops) :] != loops:
            raise ScheduleError(f"{', '.join(loops)} are not the innermost loops of {self.stage}")
        summed = {self.groups, self.steps, self.terms}
        if any((axis in state.reduce) != (axis in summed) for axis in loops):
            raise ScheduleError("rows and lanes are axes of the result, steps and terms of the sum")
        stage = state.stage
        if stage.combiner != "sum" or stage.accumulator is not None:
            raise ScheduleError(f"{self.stage} is no sum in the type of its terms")
        if narrow_factors(stage.body) is None:
            raise ScheduleError(f"the terms of {self.stage} are no products of narrower factors")
        first = next(i for i, axis in enumerate(state.order) if axis in state.reduce)
        if first >= len(state.order) - len(loops):
            raise ScheduleError("no loop of the sum encloses those that tiles run over")
        for axis in state.order[first : -len(loops)]:
            if axis not in state.reduce and state.kinds.get(axis) is not LoopKind.UNROLLED:
                raise ScheduleError(f"the loop {axis} over tiles is not unrolled")
        if any(axis in state.kinds for axis in tiled) or any(
            axis in state.fusions for axis in tiled
        ):
            raise ScheduleError("a loop that a tile runs over is of another kind already")
        return scheduled.with_state(replace(state, tiled=tiled))
