"""FusedKernel + Schedule -> ScheduledKernel, and on to its loops."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.loops.ir import LoopNest
from tunefarm.compiler.loops.lower_kernel import lower_kernel
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.steps.step import Step


def lower(kernel: FusedKernel, schedule: Schedule) -> LoopNest:
    """The loop nest of `kernel` under `schedule`; `ScheduleError` if they do not fit."""
    return lower_kernel(apply_schedule(kernel, schedule))


def apply_schedule(kernel: FusedKernel, schedule: Schedule) -> ScheduledKernel:
    """Apply every step in order; `ScheduleError` names one that does not fit the rest."""
    scheduled = ScheduledKernel.of(kernel)
    step: Step | None = None
    try:
        for step in schedule.steps:
            scheduled = step.apply(scheduled)
        for step in schedule.steps:
            step.check(scheduled)
    except ScheduleError as error:
        raise ScheduleError(
            f"{step}: {error.message}", program=str(schedule), hint=error.hint
        ) from None
    return scheduled
