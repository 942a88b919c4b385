"""Whether this machine lets a user start the threads that Ray needs, asked before it starts.

Without them its daemons crash or hang, each in its own way and after minutes.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tunefarm.compiler.control_groups import ControlGroups
from tunefarm.compiler.errors import MeasureError

_DAEMONS = 130
_EACH_WORKER = 45
"""Threads of Ray 2.60 on two cores: its daemons with the driver, and each worker process (232 were
counted with two workers)."""


def check_threads(workers: int, groups: ControlGroups | None = None) -> None:
    """Raise MeasureError unless Ray and so many worker processes can start their threads."""
    needed = _DAEMONS + _EACH_WORKER * workers
    for free, limit in _limits(groups or ControlGroups()):
        if free < needed:
            raise MeasureError(
                f"Ray needs about {needed} threads, and {max(0, free)} more can be started here: "
                f"the limit is {limit}",
                hint="raise it, or measure without Ray: --runner local",
            )


def _limits(groups: ControlGroups) -> Iterator[tuple[int, str]]:
    free = groups.free_threads()
    if free is not None:
        yield free, "pids.max of a control group"
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is exempt
        yield most - _threads_of(os.getuid()), f"ulimit -u, {most}"


def _threads_of(user: int) -> int:
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if process.stat().st_uid == user:
                total += len(os.listdir(process / "task"))
    return total
