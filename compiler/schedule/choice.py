"""What a build asks a tuner for: a schedule for a kernel, and where it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ScheduleChoice:
    """A schedule for a kernel and where it came from.

    `source` is TUNED, or PREDICTED from the record of a relative, as in a `KernelReport`;
    `record_id` is that record, `latency` the time that was measured for this kernel in seconds,
    if any.
    """

    schedule: Schedule
    source: str
    record_id: str | None = None
    latency: float | None = None

    def __str__(self) -> str:
        steps = "; ".join(map(str, self.schedule.steps)) or "no steps"
        return f"{' '.join(filter(None, (self.source, self.record_id)))}: {steps}"


ChooseSchedule: TypeAlias = Callable[[FusedKernel], ScheduleChoice | None]
