"""How much memory there is, and the limits that control groups set to this process: of memory,
threads and CPU time.

Both versions of control groups are read. Groups nest, and each bounds those within it: the tightest
counts. In a container the outermost group that can be seen is the container's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from tunefarm.compiler.types.frozen import frozen

_V2 = "cgroup2"
_V1 = "cgroup"


@frozen
class ControlGroups:
    """The groups of a process, as its `/proc` tells; `root` and `proc` are elsewhere in tests."""

    root: Path = Path("/")
    proc: Path = Path("/proc/self")

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
            for folder in self.folders("pids")
            if (limit := _text(folder / "pids.max")).isdecimal()
            and (used := _text(folder / "pids.current")).isdecimal()
        ]
        return min(free, default=None)

    def _texts(self, controller: str, file: str) -> Iterator[str]:
        """What the file of each group says, where it is there."""
        yield from filter(None, (_text(folder / file) for folder in self.folders(controller)))

    def folders(self, controller: str) -> Iterator[Path]:
        """The folders of this process's group and of the groups around it, the innermost first."""
        for kind, controllers, path in self._memberships():
            if kind == _V1 and controller not in controllers:
                continue
            for mounted, shown in self._mounts(kind, controller):
                top = self.root / shown.lstrip("/")
                inside = _below(PurePosixPath(path), mounted)
                yield from filter(Path.is_dir, (top / part for part in (inside, *inside.parents)))

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


def _below(path: PurePosixPath, mounted: str) -> PurePosixPath:
    """A group's path below the topmost one that is seen; that one where the group is not below."""
    if ".." in path.parts or not path.is_relative_to(mounted):
        return PurePosixPath()
    return path.relative_to(mounted)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@cache  # each load asks, and to look takes a millisecond
def memory_bytes() -> int:
    """What processes may use of this machine: its memory, or the part that a container gets."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(physical, ControlGroups().memory_bytes() or physical)
