"""The limits that control groups set to this process: of processors, memory and threads.

Both versions of control groups are read, and each group around that of the process, of which the
tightest counts. In a container the outermost group that can be seen is the container's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_V2 = "cgroup2"
_V1 = "cgroup"


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The groups of a process, as its `/proc` tells; `root` and `proc` are elsewhere in tests."""

    root: Path = Path("/")
    proc: Path = Path("/proc/self")

    def cpus(self) -> float | None:
        """How many processors' time may be used; None if all."""
        found = [
            *(_quota(*(text.split()[:2])) for text in self._texts("cpu", "cpu.max")),
            *map(_quota_v1, self._folders("cpu")),
        ]
        return min((value for value in found if value is not None), default=None)

    def throttled_us(self) -> int:
        """For how many microseconds groups with a quota have had to wait so far; 0 without one."""
        total = 0
        for text in self._texts("cpu", "cpu.stat"):
            facts = dict(line.split()[:2] for line in text.splitlines() if " " in line)
            total += (
                int(facts.get("throttled_usec", 0)) + int(facts.get("throttled_time", 0)) // 1000
            )
        return total

    def memory_bytes(self) -> int | None:
        """How much memory may be used; None if all."""
        texts = [
            *self._texts("memory", "memory.max"),
            *self._texts("memory", "memory.limit_in_bytes"),
        ]
        return min((int(text) for text in texts if text.isdecimal()), default=None)

    def free_threads(self) -> int | None:
        """How many more threads may be started; None if there is no limit."""
        free = [
            int(limit) - int(used)
            for folder in self._folders("pids")
            if (limit := _text(folder / "pids.max")).isdecimal()
            and (used := _text(folder / "pids.current")).isdecimal()
        ]
        return min(free, default=None)

    def _texts(self, controller: str, file: str) -> Iterator[str]:
        """What the file of each group says, where it is there."""
        yield from filter(None, (_text(folder / file) for folder in self._folders(controller)))

    def _folders(self, controller: str) -> Iterator[Path]:
        """This process's group, and the groups around it, that a controller has."""
        for kind, controllers, path in self._memberships():
            if kind == _V1 and controller not in controllers:
                continue
            for mounted, shown in self._mounts(kind, controller):
                inside = path.removeprefix(mounted.rstrip("/")) if path.startswith(mounted) else "/"
                folder = self.root / shown.lstrip("/")
                innermost = folder / inside.strip("/")
                yield innermost if innermost.is_dir() else folder
                if innermost.is_dir():
                    yield from (p for p in innermost.parents if p.is_relative_to(folder))

    def _memberships(self) -> Iterator[tuple[str, list[str], str]]:
        """Version, controllers and path of each group that the process is in."""
        for line in _text(self.proc / "cgroup").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            yield (_V2 if number == "0" and not controllers else _V1), controllers.split(","), path

    def _mounts(self, kind: str, controller: str) -> Iterator[tuple[str, str]]:
        """What part of the groups is mounted, and where; of several mounts the first."""
        for line in _text(self.proc / "mountinfo").splitlines():
            place, _, source = line.partition(" - ")
            fields, facts = place.split(), source.split()
            if len(fields) < 5 or len(facts) < 3 or facts[0] != kind:
                continue
            if kind == _V2 or controller in facts[2].split(","):
                yield fields[3], fields[4]
                return


def _quota_v1(folder: Path) -> float | None:
    return _quota(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _quota(quota: str, period: str = "100000") -> float | None:
    if not (quota.isdecimal() and period.isdecimal() and int(period) > 0):
        return None  # "max", -1, or no such file
    return int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
