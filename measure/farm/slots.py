"""Which cores build and which time: leased, so that the two never share one at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefarm.compiler.counted import counted
from tunefarm.compiler.errors import MeasureError

_MAX_BUILDERS = 8


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The cores of one node: one for each builder, a group for each measuring slot.

    A core may be in both; it is leased to one at a time. With `alternates` the whole node takes
    turns: nothing is timed while anything is built.
    """

    build_cores: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    alternates: bool = False

    @property
    def timed(self) -> frozenset[int]:
        """The cores of the slots."""
        return frozenset(core for slot in self.slots for core in slot)

    @property
    def spare(self) -> tuple[int, ...]:
        """The cores on which nothing is ever timed."""
        return tuple(core for core in self.build_cores if core not in self.timed)


def plan_slots(
    cores: Sequence[int], threads: int, *, slots: int = 1, builders: int | None = None
) -> SlotPlan:
    """Divide `cores` into `slots` measuring slots of `threads` cores, and builders on the rest.

    The highest cores time, because interrupts land on the lowest as a rule. Where builders are not
    counted, the cores of a slot build too, while nothing is there to be timed. With no core left
    over building and timing alternate on all of them. Raises MeasureError when there are too few
    cores.
    """
    if threads < 1 or slots < 1:
        raise MeasureError(f"{slots} measuring slots of {threads} threads make no sense")
    ordered = sorted(cores)
    timed = threads * slots
    if timed > len(ordered):
        raise MeasureError(
            f"{counted(slots, 'measuring slot')} of {counted(threads, 'thread')} need {timed} "
            f"cores, this machine offers {len(ordered)}"
        )
    groups = ordered[len(ordered) - timed :]
    spare = ordered[: len(ordered) - timed]
    building = [*spare[:_MAX_BUILDERS], *groups] if builders is None else (spare or ordered)
    count = min(len(building), _MAX_BUILDERS if builders is None else builders)
    if count < 1:
        raise MeasureError("at least one builder is needed")
    return SlotPlan(
        tuple(building[:count]),
        tuple(tuple(groups[i * threads : (i + 1) * threads]) for i in range(slots)),
        alternates=not spare,
    )


class CoreLeases:
    """Who holds which core. A lease of several cores is granted whole or not at all."""

    def __init__(self) -> None:
        self._held: set[int] = set()

    def acquire(self, cores: Iterable[int]) -> bool:
        """Take the cores unless one of them is held; whether it was granted."""
        wanted = set(cores)
        if not self._held.isdisjoint(wanted):
            return False
        self._held |= wanted
        return True

    def release(self, cores: Iterable[int]) -> None:
        """Give the cores back; raises MeasureError for one that is not held."""
        returned = set(cores)
        if not returned <= self._held:
            raise MeasureError(f"cores {sorted(returned - self._held)} are not leased")
        self._held -= returned


class ProcessPin:
    """Keeps this process, whatever it does between measurements, off the measuring cores."""

    def __init__(self) -> None:
        self._before: set[int] | None = None

    def confine(self, cores: Iterable[int]) -> None:
        """Move every thread of this process to `cores`; what it starts from now on follows."""
        if self._before is None:
            self._before = os.sched_getaffinity(0)
        _pin_threads(set(cores))

    def release(self) -> None:
        """Undo `confine`. Idempotent."""
        if self._before is not None:
            _pin_threads(self._before)
            self._before = None


def _pin_threads(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cores)
        except ProcessLookupError:
            continue  # the thread has ended meanwhile
