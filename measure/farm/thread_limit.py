"""Whether this machine lets a user start the threads that Ray needs, asked before it starts.

Without them its daemons crash or hang, each in its own way and after minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tunefarm.compiler.control_groups import ControlGroups
from tunefarm.compiler.errors import MeasureError
from tunefarm.configs.resource_limits import PROCESSES, threads_of

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
    most = PROCESSES.value
    if most is not None and os.geteuid() != 0:  # root is exempt
        yield most - threads_of(os.getuid()), f"ulimit -u, {most}"
