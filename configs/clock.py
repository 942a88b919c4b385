"""Clocks that go on steadily, for deadlines and durations: the system's clock is set now and then.

What one process compares with what it has read before is read here, or by `time.monotonic` where
the time that the machine sleeps is not to count. `time.time` is for moments that others read.
"""

from __future__ import annotations

import time


def since_boot() -> float:
    """Seconds that count while the machine sleeps too, and whatever its clock is set to."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_BOOT = time.time() - since_boot()
"""When the machine was started, by its clock as it stood when this process began."""


def steady_time() -> float:
    """Seconds since the epoch, by the system's clock as it stood when this process began."""
    return _BOOT + since_boot()
