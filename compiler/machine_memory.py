"""How much memory there is."""

from __future__ import annotations

import os
from pathlib import Path

_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """What processes may use of this machine: its memory, or the part that a container gets."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(physical, int(_GROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no such group, or "max"
        return physical
