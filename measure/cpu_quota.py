"""The CPU time that control groups grant a process, and how often they stopped it for want of it.

A quota is so much CPU time in each period (100 ms as a rule) for all processes of a group.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tunefarm.compiler.machine.control_groups import ControlGroups

_STAT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """The tightest quota: so many `cpus` on average, of the group in `folder`. `stats` are the
    counters of all groups that have a quota."""

    cpus: float
    folder: Path
    stats: tuple[Path, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"a CPU quota of {self.cpus:g}"


@dataclass(frozen=True, slots=True)
class _Group:
    folder: Path
    cpus: float


def read_quota(root: Path = Path("/")) -> CpuQuota | None:
    """The tightest quota of this process; None without any. `root` is where proc and sys are."""
    groups = [
        _Group(folder, cpus)
        for folder in ControlGroups(root, root / "proc/self").folders("cpu")
        if (cpus := _quota_of(folder)) is not None
    ]
    if not groups:
        return None
    tightest = min(groups, key=lambda group: group.cpus)
    stats = tuple(group.folder / "cpu.stat" for group in groups)
    return CpuQuota(tightest.cpus, tightest.folder, stats)


class Throttling:
    """How often the groups of a quota have been stopped, since they are there."""

    def __init__(self, stats: Sequence[Path]) -> None:
        """`stats` are their files cpu.stat; none: never. One that cannot be read is left out."""
        self._files: list[int] = []
        for path in stats:
            with suppress(OSError):  # it has gone, with its group
                self._files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def count(self) -> int:
        """Periods in which they have been stopped. It grows before a stopped process goes on."""
        return sum(map(_throttled_periods, self._files))

    def close(self) -> None:
        """Idempotent."""
        while self._files:
            os.close(self._files.pop())


def _throttled_periods(file: int) -> int:
    try:
        lines = os.pread(file, _STAT_BYTES, 0).split(b"\n")
    except OSError:  # the group was removed
        return 0
    for line in lines:
        name, _, value = line.partition(b" ")
        if name == b"nr_throttled":
            return int(value)
    return 0


def _quota_of(folder: Path) -> float | None:
    """CPUs that a group may use on average; None without a limit, or without such a group."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)  # "max": no number
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota = (folder / "cpu.cfs_quota_us").read_text()
        period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None  # -1: no limit
    return None
