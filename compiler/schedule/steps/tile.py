from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import Split
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class Tile(Step):
    """Split `axis` into `axis.o` and `axis.i` of extent `factor`.

    for i < 17: y[i]     ->     for i.o < 4: for i.i < 4: y[i.o*4 + i.i]     tail "peel"
                                for i.i < 1: y[16 + i.i]

                         ->     for i.o < 5: let s = min(i.o*4, 13)          tail "shift"
                                  for i.i < 4: y[s + i.i]

                         ->     for i.o < 5: for i.i < 4:                    tail "mask"
                                  if i.o*4 + i.i < 17: y[i.o*4 + i.i]

    "peel" repeats the inner nest for the rest; "shift" moves the last tile back so that it
    overlaps its neighbour; "mask" keeps it whole and leaves out what is beyond the extent: in a
    vector, by the mask of its loads and stores. A reduce axis can only be peeled. A factor above
    the extent is cut to it; "pad" is "mask" without that.
    """

    stage: str
    axis: str
    factor: int
    tail: str = "peel"

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        outer, inner = f"{self.axis}.o", f"{self.axis}.i"
        order = state.order_with((self.axis,), (outer, inner))
        if self.axis in state.fusions:
            raise ScheduleError("a fused loop cannot be tiled: tile its parts, then fuse")
        if self.factor < 1:
            raise ScheduleError("the factor must be at least 1")
        if self.tail not in ("peel", "shift", "mask", "pad"):
            raise ScheduleError(f"unknown tail {self.tail!r} (peel, shift, mask or pad)")
        reduced = self.axis in state.reduce
        if self.tail != "peel" and reduced:
            raise ScheduleError("a reduce axis can only be peeled: its tiles are summed up")
        split = Split(self.axis, outer, inner, self.factor, self.tail)
        return scheduled.with_state(
            replace(
                state,
                order=order,
                reduce=state.reduce | {outer, inner} if reduced else state.reduce,
                splits={**state.splits, self.axis: split},
                splits_by_outer={**state.splits_by_outer, outer: split},
            )
        )
