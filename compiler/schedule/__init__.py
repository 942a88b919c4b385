"""Schedule spaces: sketches, the choices that each leaves open, and the default schedule."""

from compiler.schedule.space import Candidate, Choice, ScheduleSpace, Sketch
from compiler.schedule.spaces import (
    default_schedule,
    naive_schedule,
    schedule_space,
    untiled_schedule,
)
from compiler.schedule.steps import Schedule

__all__ = [
    "Candidate",
    "Choice",
    "Schedule",
    "ScheduleSpace",
    "Sketch",
    "default_schedule",
    "naive_schedule",
    "schedule_space",
    "untiled_schedule",
]
