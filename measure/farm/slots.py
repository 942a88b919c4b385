"""Which cores build and which time: leased, so that the two never share one at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tunefarm.compiler.errors import MeasureError, with_count
from tunefarm.measure.cpus import Cpus
from tunefarm.measure.machine import pin

_MAX_BUILDERS = 8


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The cores of one node: one for each builder, a group for each measuring slot.

    A core may be in both; it is leased to one at a time. With `alternates` the whole node
    alternates: nothing is timed while anything is built.
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
    cpus: Cpus, threads: int, *, slots: int = 1, builders: int | None = None
) -> SlotPlan:
    """Divide the cores into `slots` measuring slots of `threads` cores, and builders on the rest.

    Slots have one thread of each physical core, of the fastest kind, the highest ones, because
    interrupts land on the lowest as a rule. The other threads of their physical cores do nothing.
    Where builders are not counted, the cores of a slot build too, while nothing is there to be
    timed. With no core left over building and timing alternate on all of them. A quota has fewer
    slots and builders, as many as it pays for at once, and both alternate where it does not pay for
    a builder as well. Raises MeasureError when there are too few cores.
    """
    if threads < 1 or slots < 1:
        raise MeasureError(f"there are no {slots} measuring slots of {threads} threads")
    enough = float(threads * slots + len(cpus.cores))
    quota = enough if cpus.quota is None else min(enough, cpus.quota.cpus)
    slots = min(slots, max(1, int(quota / threads)))
    timing, timed = cpus.timing, threads * slots
    if timed > len(timing):
        raise MeasureError(
            f"{with_count(slots, 'measuring slot')} of {with_count(threads, 'thread')} need "
            f"{timed} cores, this machine offers {len(timing)}{_left_out(cpus)}",
            hint=_hint(cpus, timed),
        )
    groups = list(timing[len(timing) - timed :])
    busy = set(cpus.physical(groups))
    spare = [core for core in cpus.cores if cpus.physical((core,))[0] not in busy]
    paid = int(quota - timed)  # builders next to the slots
    alternates = not spare or paid < 1
    most = _MAX_BUILDERS if builders is None else builders
    if alternates:
        building = [*spare, *groups] if spare else list(cpus.cores)
        most = min(most, max(1, int(quota)))
    elif builders is None:
        building = [*spare[: min(_MAX_BUILDERS, paid)], *groups]
    else:
        building = spare
        most = min(most, paid)
    if most < 1:
        raise MeasureError("at least one builder is needed", hint="measure.builders = 1")
    return SlotPlan(
        tuple(building[:most]),
        tuple(tuple(groups[i * threads : (i + 1) * threads]) for i in range(slots)),
        alternates,
    )


def describe(plan: SlotPlan, cpus: Cpus) -> str:
    """Which cores time and which build, in a sentence."""
    slots = ", ".join("+".join(map(str, slot)) for slot in plan.slots)
    cores = "core" if len(plan.timed) == 1 else "cores"
    text = f"{with_count(len(plan.slots), 'slot')} for timing ({cores} {slots}), "
    text += f"{with_count(len(plan.build_cores), 'builder')}"
    return f"{cpus}: {text}{', one after the other' if plan.alternates else ''}"


def _left_out(cpus: Cpus) -> str:
    """Why fewer cores may time than there are."""
    reasons = []
    if len(cpus.physical(cpus.cores)) < len(cpus.cores):
        reasons.append("threads of one core are not timed at once")
    if len(cpus.kinds) > 1:
        reasons.append(f"{len(cpus.fastest_kind)} of {len(cpus.cores)} are of the fastest kind")
    return f" ({'; '.join(reasons)})" if reasons else ""


def _hint(cpus: Cpus, timed: int) -> str:
    """What to ask for instead: cores of another kind, if one of these has enough, or fewer."""
    for kind in cpus.kinds[1:]:
        slower = Cpus(tuple(sorted(kind)), cpus.known)
        if len(slower.timing) >= timed:
            cores = ",".join(map(str, slower.cores))
            return f"taskset --cpu-list {cores} tune ... times on the slower cores"
    return "ask for fewer: compile.threads, measure.slots"


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
            pin(cores, int(thread.name))
        except ProcessLookupError:
            continue  # the thread has ended meanwhile
