"""Steps that cut, order and fuse loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import RangeCuts, Split
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


@dataclass(frozen=True, slots=True)
class Reorder(Step):
    """Put the loops of `stage` in this order, outermost first; all its axes are named.

    for i: for j: y[i, j]     ->     for j: for i: y[i, j]
    """

    stage: str
    axes: tuple[str, ...]

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        if sorted(self.axes) != sorted(state.order):
            raise ScheduleError(f"{self.axes} is no permutation of the loops {state.order}")
        return scheduled.with_state(replace(state, order=self.axes))


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """Make one axis `name` of adjacent axes, to give a parallel loop more iterations.

    for i < 4: for j < 5: y[i, j]     ->     for f < 20: y[f // 5, f % 5]
    """

    stage: str
    axes: tuple[str, ...]
    name: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        if not self.axes:
            raise ScheduleError("there must be loops to fuse")
        order = state.order_with(self.axes, (self.name,))
        if state.reduce.intersection(self.axes):
            raise ScheduleError("reduce axes cannot be fused")
        fusions = {**state.fusions, self.name: self.axes}
        return scheduled.with_state(replace(state, order=order, fusions=fusions))


@dataclass(frozen=True, slots=True)
class Partition(Step):
    """Split the loop's range so that `first` and `last` iterations stand alone, and at `cuts`.

    for i < 9: body     ->     body(0); for 1 <= i < 8: body(i); body(8)
    for i < 9: body     ->     for i < 4: body(i); for 4 <= i < 9: body(i)     (0, 0, cuts (4,))

    Guards of padding are then decided at compile time in the middle part.
    """

    stage: str
    axis: str
    first: int = 1
    last: int = 1
    cuts: tuple[int, ...] = ()

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        state = scheduled.stage(self.stage)
        state.position(self.axis)
        if self.first < 0 or self.last < 0:
            raise ScheduleError("the number of iterations that stand alone cannot be negative")
        cuts = {**state.cuts, self.axis: RangeCuts(self.first, self.last, self.cuts)}
        return scheduled.with_state(replace(state, cuts=cuts))
