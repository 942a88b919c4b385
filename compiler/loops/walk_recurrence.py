"""The rule of a recurrence's loops: one step after the other, and all of a step in its turn."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.recurrence import Recurrence, recurrence_among
from tunefarm.compiler.loops.ir import LoopKind
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.stage_state import StageState


def checked_recurrence(scheduled: ScheduledKernel) -> Recurrence | None:
    """The recurrence that a scheduled kernel computes, None if it computes none.

    `ScheduleError` unless its output has one loop over the steps, in order, outside of which are
    only loops over parts that never read one another, and inside of which is all else.
    """
    try:
        recurrence = recurrence_among(tuple(state.stage for state in scheduled.stages))
    except ValueError as error:
        raise ScheduleError(str(error)) from None
    if recurrence is None:
        return None
    output, axis = scheduled.stages[-1], recurrence.axis
    if axis not in output.order or output.is_parallel(axis):
        raise ScheduleError(f"{output.name} is not walked along {axis}, step after step")
    if output.kinds.get(axis, LoopKind.SERIAL) is not LoopKind.SERIAL:
        raise ScheduleError(f"the steps of {output.name} along {axis} can only be a serial loop")
    for loop in output.order[: output.position(axis)]:
        if not all(part in recurrence.apart for part in _roots(output, loop)):
            raise ScheduleError(f"steps along {axis} read across loop {loop} outside of them")
    for name in recurrence.stages[:-1]:
        if not scheduled.is_inside(scheduled.stage(name), output, axis):
            raise ScheduleError(f"{name} is computed outside of the steps of {output.name}")
    return recurrence


def _roots(state: StageState, loop: str) -> list[str]:
    """The axes that a loop goes over parts of."""
    found = [state.root_of(part) for part in state.fusions.get(loop, (loop,))]
    return [axis.name if axis is not None else "" for axis in found]
