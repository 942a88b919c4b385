"""What machine a measurement ran on, and what else the machine was doing meanwhile."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import resource
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tunefarm.compiler.errors import MeasureError

_affinity = threading.Lock()
_KINDS = ("cpu family", "model", "CPU implementer", "CPU part")
"""What /proc/cpuinfo says of a kind of CPU. Steppings are left out: a fleet has several of one."""
_pinned: dict[int, frozenset[int]] = {}
"""Where a process has put its first thread itself, by its id."""


@cache
def fingerprint() -> dict[str, Any]:
    """The machine's unchanging facts: CPU, its features (hashed), cores, kernel, governor."""
    cpu, features = _cpu_info()
    facts: dict[str, Any] = {
        "cpu": cpu,
        "features": hashlib.sha256(" ".join(sorted(features)).encode()).hexdigest()[:12],
        "cores": os.cpu_count() or 1,
        "kernel": platform.release(),
        "governor": _governor(),
    }
    text = json.dumps(facts, sort_keys=True)
    return {**facts, "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:16]}


def cpu_name() -> str:
    """This machine's kind of CPU as fingerprints have it: `AMD EPYC (family 25, model 17)`."""
    return str(fingerprint()["cpu"])


def known_as(cpu: str) -> set[str]:
    """What records call this kind of CPU: earlier versions wrote the marketing name alone."""
    return {cpu, cpu.rpartition(" (")[0] or cpu}


def oom_kills() -> int:
    """How often the kernel's out-of-memory killer has struck since boot (0 if it does not tell)."""
    for line in _read("/proc/vmstat").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0


@dataclass(frozen=True, slots=True)
class Activity:
    """Counters at one moment; the difference of two moments tells what disturbed a run."""

    steal_seconds: float  # taken by the hypervisor, over the watched cores
    involuntary_switches: int  # of this process
    queued_seconds: float  # its threads could run, but other processes had the cores

    def since(self, before: Activity) -> Activity:
        """What happened between `before` and this moment."""
        return Activity(
            self.steal_seconds - before.steal_seconds,
            self.involuntary_switches - before.involuntary_switches,
            self.queued_seconds - before.queued_seconds,
        )

    def to_json(self) -> dict[str, float | int]:
        """As recorded with a result."""
        return {
            "steal_seconds": round(self.steal_seconds, 4),
            "involuntary_switches": self.involuntary_switches,
            "queued_seconds": round(self.queued_seconds, 6),
        }


def activity(cores: Sequence[int]) -> Activity:
    """The counters now, steal time summed over `cores`."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Activity(_steal_seconds(cores), usage.ru_nivcsw, _queued_seconds())


def available_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


@contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    """Keep this thread on these cores; what it starts meanwhile inherits them.

    Raises MeasureError if it may not run on one of them.
    """
    before, lost = os.sched_getaffinity(0), pin(cores)
    try:
        check_none_lost(lost)
        yield
    finally:
        pin(before)


def check_none_lost(lost: Iterable[int]) -> None:
    """Raise MeasureError if there are cores that may not be used any more."""
    if numbers := sorted(lost):
        hint = "start it again: it uses the cores that are left"
        raise MeasureError(cores_lost(numbers), hint=hint)


def pin(cores: Iterable[int], thread: int = 0) -> frozenset[int]:
    """Keep a thread (0: this one) on these cores; those of them that it cannot have, since a cpuset
    leaves them out or they are offline."""
    wanted = frozenset(cores)
    with _affinity:
        try:
            os.sched_setaffinity(thread, wanted)
        except OSError as error:
            if error.errno != errno.EINVAL:  # none of them is left
                raise
        found = frozenset(os.sched_getaffinity(thread))
        if (thread or threading.get_native_id()) == os.getpid():
            _pinned[os.getpid()] = found
    return wanted - found


def cores_lost(cores: Iterable[int]) -> str:
    """That cores may not be used any more, in a sentence."""
    numbers = sorted(cores)
    named = f"core{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
    return f"{named} may not be used any more (a cpuset, taskset or hot-unplug)"


class AffinityWatch:
    """Notices that somebody else has changed where this process may run, as `taskset -p` does."""

    def __init__(self) -> None:
        """From now on."""
        self._process = os.getpid()
        with _affinity:
            now = frozenset(os.sched_getaffinity(self._process))
            _pinned[self._process] = now

    def withdrawn(self, cores: Iterable[int]) -> frozenset[int]:
        """Those of the cores that were taken from this process; none if nobody changed it."""
        with _affinity:
            now = frozenset(os.sched_getaffinity(self._process))
            if now == _pinned[self._process]:
                return frozenset()
        return frozenset(cores) - now


def load_average() -> float:
    """Runnable processes, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)


def _steal_seconds(cores: Sequence[int]) -> float:
    names = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in _read("/proc/stat").splitlines():
        columns = line.split()
        if columns and columns[0] in names and len(columns) > 8:
            ticks += int(columns[8])
    return ticks / os.sysconf("SC_CLK_TCK")


def _queued_seconds() -> float:
    """Run-queue delay of all threads (the second number of schedstat; 0 if it is not kept)."""
    nanoseconds = 0
    for thread in os.listdir("/proc/self/task"):
        columns = _read(f"/proc/self/task/{thread}/schedstat").split()
        if len(columns) > 1:
            nanoseconds += int(columns[1])
    return 1e-9 * nanoseconds


def _cpu_info() -> tuple[str, tuple[str, ...]]:
    """The name of the CPU, and its features. Hypervisors give many kinds one marketing name, and
    those of Arm have none: what tells them apart stands behind it."""
    facts: dict[str, str] = {}
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    name = facts.get("model name") or platform.processor() or platform.machine()
    kind = ", ".join(f"{fact.split()[-1]} {facts[fact]}" for fact in _KINDS if fact in facts)
    features = facts.get("flags") or facts.get("Features") or ""
    return f"{name} ({kind})" if kind else name, tuple(features.split())


def _governor() -> str:
    return _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()


def _read(path: str) -> str:
    """The text of a kernel file; empty on systems that lack it."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
