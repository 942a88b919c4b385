"""What a worker process may use, and with whom it dies."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

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
    its address space and the size of its files."""
    pin(settings.cores)
    resource.setrlimit(resource.RLIMIT_AS, (settings.address_space, settings.address_space))
    resource.setrlimit(resource.RLIMIT_FSIZE, (settings.file_bytes, settings.file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_cpu(seconds: float) -> None:
    """Allow `seconds` of CPU time from now on; the supervisor's deadline comes first as a rule."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    used = usage.ru_utime + usage.ru_stime
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, hard))
