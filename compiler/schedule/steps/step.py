"""Base of schedule steps: small frozen rewrites of a scheduled kernel, replayable from a log."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel

STEPS: dict[str, type[Step]] = {}
"""Every step by the name that it has in a schedule's JSON."""


@dataclass(frozen=True, slots=True)
class Step:
    """A rewrite; its fields are its arguments in JSON, its docstring shows loops before -> after.

    A subclass is known by its name from its definition on.
    """

    def __init_subclass__(cls) -> None:
        # Called twice: a dataclass with slots is made anew, and that is the one that stays.
        STEPS[cls.__name__] = cls

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        """The kernel after this step; `ScheduleError` with the reason if it does not fit."""
        raise NotImplementedError

    def check(self, scheduled: ScheduledKernel) -> None:
        """`ScheduleError` if the kernel after all steps lacks what this one relies on."""
