"""A time limit that counts only time in which this process runs.

A laptop whose lid is closed, a process that is stopped (SIGSTOP): when they go on, what was asked
before is not late. Waiting is done in short pieces, and of each no more counts than was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

_PIECE_SECONDS = 1.0


class Countdown:
    """Seconds that are `left`."""

    def __init__(self, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self.left = seconds
        self._clock = clock

    def wait(self, happens: Callable[[float], bool]) -> bool:
        """Wait until `happens` within what is left; it gets how many seconds to wait at most, and
        looks even if that is 0."""
        while True:
            piece = min(max(0.0, self.left), _PIECE_SECONDS)
            begin = self._clock()
            if happens(piece):
                self.left -= min(self._clock() - begin, piece)
                return True
            self.left -= piece
            if self.left <= 0.0:
                return False
