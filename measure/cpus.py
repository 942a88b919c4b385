"""The cores that a process may use: how they share hardware, of what kind they are, their quota.

Two threads of one physical core share its units, so that one slows down what is timed on the other;
cores of two kinds (Intel's P and E cores, Arm's big and little ones, AMD's dense ones) differ by
more than most schedules do. So timed runs have one thread of each physical core, of one kind.
What the kernel says stands in sysfs; where it says nothing, as in some containers, each core
stands for itself and all are alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tunefarm.compiler.errors import with_count
from tunefarm.compiler.machine.control_groups import ControlGroups

# The CPU time that control groups grant a process, and how often they stopped it for want of it.
#
# A quota is so much CPU time in each period (100 ms as a rule) for all processes of a group.

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


_CPUS = Path("sys/devices/system/cpu")
_HYBRID = (
    ("sys/devices/cpu_core", 2),
    ("sys/devices/cpu_atom", 1),
    ("sys/devices/cpu_lowpower", 0),
)
"""The folders in which Linux lists the cores of a hybrid Intel CPU, and how fast these are."""
_SAME_SPEED = 0.9
"""Cores that are this close to the fastest are of its kind: the clocks of equal cores differ by up
to 5 % where the best of a die are favoured, those of two kinds by 13 % and more."""
_MOST_CPU = 1 << 16


@dataclass(frozen=True, slots=True)
class Core:
    """What sysfs says of a core (a CPU of Linux).

    `siblings` are the threads of its physical core, itself among them. `rank` orders the kinds of a
    hybrid CPU, `model` tells models apart, `caches` are the bytes of those that it uses, `capacity`
    and `hertz` how fast it is next to others (0: not known).
    """

    number: int
    siblings: frozenset[int]
    rank: int = 0
    model: str = ""
    caches: tuple[int, ...] = ()
    capacity: int = 0
    hertz: int = 0


@dataclass(frozen=True)
class Cpus:
    """The cores that a process may use, and the CPUs' worth of time that it gets."""

    cores: tuple[int, ...]
    known: Mapping[int, Core] = field(default_factory=dict)
    quota: CpuQuota | None = None

    @staticmethod
    def alike(cores: Iterable[int]) -> Cpus:
        """Cores of which nothing is known but their numbers."""
        return Cpus(tuple(sorted(cores)))

    @cached_property
    def timing(self) -> tuple[int, ...]:
        """Those that may time at once: of each physical core of the fastest kind one thread."""
        first: dict[frozenset[int], int] = {}
        for core in self.cores:
            if core in self.fastest_kind:
                first.setdefault(self.siblings(core), core)
        return tuple(first.values())

    @cached_property
    def fastest_kind(self) -> frozenset[int]:
        """The cores of the fastest kind; of kinds that are as fast, those with larger caches."""
        kinds = self.kinds
        return kinds[0] if kinds else frozenset()

    @cached_property
    def kinds(self) -> tuple[frozenset[int], ...]:
        """The cores of each kind, the fastest kind first."""
        cores = _comparable([self._core(number) for number in self.cores])
        speed = _speeds(cores)
        groups: list[list[Core]] = []
        for core in sorted(cores, key=lambda core: (-core.rank, -speed[core.number], core.number)):
            group = next((group for group in groups if _are_alike(group[0], core, speed)), None)
            if group is None:
                groups.append([core])
            else:
                group.append(core)
        top = max((speed[group[0].number] for group in groups), default=0.0)

        def order(group: list[Core]) -> tuple[int, float, int, int]:
            lost = max(0.0, _SAME_SPEED * top - speed[group[0].number])
            return (-group[0].rank, lost, -sum(group[0].caches), -len(group))

        groups.sort(key=order)
        return tuple(frozenset(core.number for core in group) for group in groups)

    def for_threads(self, threads: int) -> tuple[int, ...]:
        """Cores for so many threads that are timed: of those that may time the highest. Where there
        are too few of them, threads of one core and slower cores serve as well."""
        cores = self.timing if len(self.timing) >= threads else self.cores
        return cores[-threads:]

    def siblings(self, core: int) -> frozenset[int]:
        """The threads of a core's physical core, also those that may not be used here."""
        return self._core(core).siblings

    def physical(self, cores: Iterable[int]) -> tuple[int, ...]:
        """The physical cores of some cores, each by its lowest thread, in order."""
        return tuple(sorted({min(self.siblings(core)) for core in cores}))

    def _core(self, number: int) -> Core:
        return self.known.get(number) or Core(number, frozenset((number,)))

    def __str__(self) -> str:
        """What may be used, in words."""
        physical = len(self.physical(self.cores))
        text = with_count(len(self.cores), "core")
        if physical < len(self.cores):
            text = f"{with_count(len(self.cores), 'thread')} of {with_count(physical, 'core')}"
        if len(self.kinds) > 1:
            text += f" of {len(self.kinds)} kinds"
        return text if self.quota is None else f"{text}, {self.quota}"


def usable_cpus(root: Path = Path("/"), allowed: Iterable[int] | None = None) -> Cpus:
    """What this process may use: the cores that it is `allowed` (by its affinity) and that are
    online. `root` is where proc and sys are."""
    wanted = os.sched_getaffinity(0) if allowed is None else set(allowed)
    online = parse_list(_text(root / _CPUS / "online"))
    cores = tuple(sorted(wanted & online if online else wanted))
    known = {number: _read_core(root, number, online) for number in cores}
    ranks = {n: rank for path, rank in _HYBRID for n in parse_list(_text(root / path / "cpus"))}
    if ranks:
        known = {n: replace(core, rank=ranks.get(n, 0)) for n, core in known.items()}
    return Cpus(cores, known, read_quota(root))


def run_threads() -> int:
    """How many threads a run may keep busy here: one a physical core, within the CPU quota."""
    cpus = usable_cpus()
    count = len(cpus.physical(cpus.cores))
    return max(1, count if cpus.quota is None else min(count, int(cpus.quota.cpus)))


def physical_cores(cores: Iterable[int], root: Path = Path("/")) -> tuple[int, ...]:
    """The physical cores of some cores of this machine, each by its lowest thread, in order."""
    return Cpus((), {core: _read_core(root, core, frozenset()) for core in cores}).physical(cores)


def parse_list(text: str) -> frozenset[int]:
    """The numbers of a list as Linux writes it ("0-3,8"); none for a text that is not one."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if (
            not first.isdecimal()
            or not (last or first).isdecimal()
            or int(last or first) > _MOST_CPU
        ):
            return frozenset()
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _read_core(root: Path, number: int, online: frozenset[int]) -> Core:
    folder = root / _CPUS / f"cpu{number}"
    listed = _text(folder / "topology/core_cpus_list")
    listed = listed or _text(folder / "topology/thread_siblings_list")
    siblings = parse_list(listed)
    if online:
        siblings &= online
    return Core(
        number,
        siblings | {number},
        model=_text(folder / "regs/identification/midr_el1"),
        caches=_caches(folder / "cache"),
        capacity=_number(folder / "cpu_capacity"),
        hertz=_number(folder / "cpufreq/cpuinfo_max_freq"),
    )


def _caches(folder: Path) -> tuple[int, ...]:
    """Bytes of the caches for data, the nearest first; none where sysfs does not list them."""
    found = {}
    for index in folder.glob("index[0-9]*"):
        level, size = _number(index / "level"), _text(index / "size")
        if level and _text(index / "type") != "Instruction" and size[:-1].isdecimal():
            found[level] = int(size[:-1]) << {"K": 10, "M": 20}.get(size[-1], 0)
    return tuple(found[level] for level in sorted(found))


def _comparable(cores: Iterable[Core]) -> list[Core]:
    """The cores without what is not known of all of them."""
    cores = list(cores)
    if not all(core.caches for core in cores):
        cores = [replace(core, caches=()) for core in cores]
    if not all(core.model for core in cores):
        cores = [replace(core, model="") for core in cores]
    return cores


def _speeds(cores: Sequence[Core]) -> dict[int, float]:
    """How fast each core is next to the fastest, 1; all alike where that is not known of all.

    Linux's capacities count what a core does at its highest clock; the clock alone comes second.
    """
    for values in ([core.capacity for core in cores], [core.hertz for core in cores]):
        if values and min(values) > 0 and min(values) < max(values):
            top = max(values)
            return {core.number: value / top for core, value in zip(cores, values, strict=True)}
    return {core.number: 1.0 for core in cores}


def _are_alike(best: Core, core: Core, speed: Mapping[int, float]) -> bool:
    """Whether a core is of the kind of the fastest one of a kind."""
    facts = (core.rank, core.model, core.caches)
    near = speed[core.number] >= _SAME_SPEED * speed[best.number]
    return near and facts == (best.rank, best.model, best.caches)


def _text(path: Path) -> str:
    """The text of a kernel file; empty on systems that lack it."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdecimal() else 0
