"""What a worker process may use, and with whom it dies."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

from tunefarm.configs.resource_limits import ADDRESS_SPACE, CPU_TIME, FILE_SIZE
from tunefarm.measure.machine import pin
from tunefarm.measure.sandbox.worker_settings import WorkerSettings

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies, also if it is dead already:
    then it just ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        raise SystemExit("the parent process is gone")


def limit(settings: WorkerSettings) -> None:
    """Pin this process to its cores, as far as it may have them (each request asks again); limit
    its address space and the size of its files.

    Where the shell that started the driver allows less, that counts.
    """
    pin(settings.cores)
    ADDRESS_SPACE.lower(settings.address_space)
    FILE_SIZE.lower(settings.file_bytes)
    CPU_TIME.lower()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_cpu(seconds: float) -> None:
    """Allow `seconds` of CPU time from now on; the supervisor's deadline comes first as a rule.

    Whatever the hard limit, the signal that says why comes before the one that kills.
    """
    soft, hard = int(_cpu_seconds() + seconds) + 1, resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, max(1, hard - 1))
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def is_spent(seconds: float) -> bool:
    """Whether too little CPU time is left, of all that this process may use, for another request.

    A fresh process has as much as the shell allows; half of that is worth a start.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY:
        return False
    return hard - 1 - _cpu_seconds() < min(seconds + 1, hard / 2)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
