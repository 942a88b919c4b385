"""The CPU time that control groups grant a process, and how often they stopped it for want of it.

A quota is so much CPU time in each period (100 ms as a rule) for all processes of a group. Groups
nest, and each bounds those below it: the tightest counts. Both versions of control groups are read,
also in a container, where the topmost group that is seen is the container's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

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
        for folder in _group_folders(root)
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


def _group_folders(root: Path) -> Iterator[Path]:
    """The folders of this process's groups for CPU time, and of those that they are in."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        unified = number == "0" and not controllers
        if unified or "cpu" in controllers.split(","):
            for mounted, point in _mounts(mounts, unified):
                yield from _upwards(root, PurePosixPath(point), _below(path, mounted))


def _mounts(lines: Sequence[str], unified: bool) -> Iterator[tuple[str, str]]:
    """Where groups of a version are mounted: the topmost group that is seen, and the folder."""
    for line in lines:
        mount, _, system = line.partition(" - ")
        columns, kind = mount.split(), system.split()
        if len(columns) < 5 or len(kind) < 3:
            continue
        if (unified and kind[0] == "cgroup2") or (
            not unified and kind[0] == "cgroup" and "cpu" in kind[2].split(",")
        ):
            yield columns[3], columns[4]


def _below(path: str, mounted: str) -> PurePosixPath:
    """A group's path below the topmost one that is seen; that one where the group is not below."""
    if ".." in PurePosixPath(path).parts or not PurePosixPath(path).is_relative_to(mounted):
        return PurePosixPath()
    return PurePosixPath(path).relative_to(mounted)


def _upwards(root: Path, point: PurePosixPath, below: PurePosixPath) -> Iterator[Path]:
    top = root / point.relative_to("/")
    for parts in range(len(below.parts), -1, -1):
        folder = top.joinpath(*below.parts[:parts])
        if folder.is_dir():
            yield folder
