"""How several drivers share one farm: each tells now and then how much it has to measure.

Drivers that have something to measure number themselves by their names, all alike, and each keeps
to its part of the slots (`tunefarm.measure.farm.dispatch.Dispatcher.share`). A driver that has
nothing, or says nothing any more, has no part. What they cannot divide they use by turns
(`tunefarm.measure.core_locks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

SILENT_SECONDS = 10.0
"""A driver that has said nothing new for so long has no part: it is gone, or stopped."""
KEEPS_SECONDS = 3.0
"""A driver keeps its part for so long when nothing waits: it is about to propose more."""
FORGOTTEN_SECONDS = 60.0


class Beat(NamedTuple):
    """What a driver says of itself: how often it has spoken, and how many requests wait."""

    number: int
    wants: int


class Part(NamedTuple):
    """The part of a driver: the one numbered `rank` of so many."""

    rank: int
    drivers: int


@dataclass(slots=True)
class _Seen:
    number: int
    heard: float
    wanted: float


class FairShare:
    """The other drivers, as one of them hears them by its own clock."""

    def __init__(self, name: str) -> None:
        """`name` is this driver's, and nobody else's."""
        self.name = name
        self._seen: dict[str, _Seen] = {}

    def part(self, beats: Mapping[str, Beat], now: float) -> Part:
        """The part of this driver, after it has heard what all say at a moment."""
        for name, beat in beats.items():
            seen = self._seen.get(name)
            if seen is None:
                seen = self._seen[name] = _Seen(beat.number, now, -KEEPS_SECONDS)
                seen.wanted = now if beat.wants else now - KEEPS_SECONDS
            elif beat.number != seen.number:
                seen.number, seen.heard = beat.number, now
                seen.wanted = now if beat.wants else seen.wanted
        self._seen = {name: seen for name, seen in self._seen.items() if name in beats}
        at_work = sorted({self.name, *filter(lambda name: self._works(name, now), self._seen)})
        return Part(at_work.index(self.name), len(at_work))

    def forgotten(self, now: float) -> list[str]:
        """Who has said nothing new for so long that nobody need hear it any more."""
        return [
            name
            for name, seen in self._seen.items()
            if name != self.name and now - seen.heard >= FORGOTTEN_SECONDS
        ]

    def _works(self, name: str, now: float) -> bool:
        seen = self._seen[name]
        return now - seen.heard < SILENT_SECONDS and now - seen.wanted < KEEPS_SECONDS
