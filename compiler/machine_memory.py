"""How much memory there is."""

from __future__ import annotations

import os
from functools import cache

from tunefarm.compiler.control_groups import ControlGroups


@cache  # each load asks, and to look takes a millisecond
def memory_bytes() -> int:
    """What processes may use of this machine: its memory, or the part that a container gets."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(physical, ControlGroups().memory_bytes() or physical)
