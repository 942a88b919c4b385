"""Notices that this process did not run for a while: it was stopped, or its machine slept."""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.configs.clock import since_boot

PAUSE_SECONDS = 20.0
"""Less than what a lease lasts, more than anything that is done between two looks."""


class Pauses:
    """Asked often; by a clock that goes on while the machine sleeps."""

    def __init__(self, clock: Callable[[], float] = since_boot) -> None:
        self._clock = clock
        self._asked = clock()

    def has_been(self) -> bool:
        """Whether nobody has asked for so long that there may have been a pause."""
        now, before = self._clock(), self._asked
        self._asked = now
        return now - before > PAUSE_SECONDS
