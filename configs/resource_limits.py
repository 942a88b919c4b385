"""What the shell or service that started this process allows it (`ulimit`), and what fails for it.

The libraries that a limit stops say that memory cannot be mapped or that a file is too large; some
end the process. Which limit that was, and how to raise it, is said here for all of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

try:
    import resource
except ImportError:  # not Linux: there are no such limits
    resource = None  # type: ignore[assignment]

MIB = 1 << 20
_NO_THREAD = "can't start new thread"  # the text of Python's RuntimeError
_NOT_MAPPED = ("failed to map segment", "cannot allocate memory")
"""What the dynamic linker's errors say of a library that there is no room for; Python has them as
an ImportError or OSError without a number."""

_as_started: dict[str, int | None] = {}
"""What limits that this process has changed were before, by their letters; None: without one, or
so high that ours, which is lower, is no matter of the user's."""


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """A limit of `setrlimit`: its letter in `ulimit`, its name there and in services.

    `unit` is that of its number: "bytes", "s", or "" for a count.
    """

    letter: str
    name: str
    unit: str = ""

    @property
    def value(self) -> int | None:
        """What this process was allowed when it started; None without a limit."""
        if resource is None:
            return None
        if self.letter in _as_started:
            return _as_started[self.letter]
        return self._smaller()

    def text(self, value: int) -> str:
        """The limit as a user set it, and what to do."""
        size = f"{value} {self.unit}".strip()
        if self.unit == "bytes":
            size = f"{value / MIB:.4g} MiB" if value >= MIB else f"{value / 1024:g} KiB"
        return (
            f"ulimit -{self.letter} is {size}: raise it, ulimit -{self.letter} unlimited, "
            f"or Limit{self.name}= of a service"
        )

    def lower(self, wanted: int | None = None) -> int | None:
        """Allow `wanted` from now on, or what is allowed already if that is less; which it is."""
        if resource is None:
            return None
        before = self._smaller()
        allowed = min((x for x in (wanted, before) if x is not None), default=None)
        if allowed is not None:
            _as_started.setdefault(self.letter, before if allowed == before else None)
            resource.setrlimit(self._number, (allowed, allowed))
        return allowed

    def warn_before(self, margin: int) -> None:
        """Have the kernel send its signal so much before the limit at which it kills, or as much
        before it as is left of a low one."""
        if resource is None:
            return
        soft, hard = resource.getrlimit(self._number)
        _as_started.setdefault(self.letter, self._smaller())  # the kernel raises the soft one
        if hard == resource.RLIM_INFINITY:
            return
        early = max(1, hard - margin, hard // 2)
        soft = early if soft == resource.RLIM_INFINITY else min(soft, early)
        resource.setrlimit(self._number, (soft, hard))

    def _smaller(self) -> int | None:
        """The soft or the hard limit; None without either."""
        both = resource.getrlimit(self._number)
        return min((limit for limit in both if limit != resource.RLIM_INFINITY), default=None)

    @property
    def _number(self) -> int:
        number: int = getattr(resource, f"RLIMIT_{self.name}")
        return number


ADDRESS_SPACE = ResourceLimit("v", "AS", "bytes")
DATA = ResourceLimit("d", "DATA", "bytes")
FILE_SIZE = ResourceLimit("f", "FSIZE", "bytes")
CPU_TIME = ResourceLimit("t", "CPU", "s")
OPEN_FILES = ResourceLimit("n", "NOFILE")
PROCESSES = ResourceLimit("u", "NPROC")
MEMORY = (ADDRESS_SPACE, DATA)

_OF_ERRNO = {
    errno.ENOMEM: MEMORY,
    errno.EFBIG: (FILE_SIZE,),
    errno.EMFILE: (OPEN_FILES,),
}
_OF_SQLITE = {  # which has its own numbers of errors, and keeps those of the system to itself
    "SQLITE_IOERR_WRITE": (FILE_SIZE,),
    "SQLITE_IOERR_NOMEM": MEMORY,
    "SQLITE_NOMEM": MEMORY,
}


def describe(*limits: ResourceLimit) -> str:
    """Those of the limits that this process was started with, and what to do; "" if none."""
    set_before = [(limit, limit.value) for limit in limits]
    return "; ".join(limit.text(value) for limit, value in set_before if value is not None)


def limit_behind(error: BaseException) -> str:
    """The limit that an error, or one that it was raised from, comes from, and what to do.

    "" where no limit explains it.
    """
    return next(filter(None, (describe(*_limits_of(each)) for each in _chain(error))), "")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _limits_of(error: BaseException) -> tuple[ResourceLimit, ...]:
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, OSError) and error.errno in _OF_ERRNO:
        return _OF_ERRNO[error.errno]
    if isinstance(error, OSError) and error.errno == errno.EAGAIN:  # or a file that is locked
        return (PROCESSES,) if _has_all_processes() else ()
    if isinstance(error, (OSError, ImportError)) and any(t in str(error) for t in _NOT_MAPPED):
        return MEMORY
    if (name := getattr(error, "sqlite_errorname", "")) in _OF_SQLITE:
        return _OF_SQLITE[name]
    if type(error) is RuntimeError and _NO_THREAD in str(error):
        return (PROCESSES,) if _has_all_processes() else MEMORY
    return ()


def _has_all_processes() -> bool:
    """Whether this user has about as many threads as the limit of processes allows."""
    most = PROCESSES.value
    if most is None or os.geteuid() == 0:  # root is exempt
        return False
    return threads_of(os.getuid()) * 10 >= most * 9


def threads_of(user: int) -> int:
    """How many threads a user's processes have."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if process.stat().st_uid == user:
                total += len(os.listdir(process / "task"))
    return total
