"""What else happened on a process's cores while it was timing: facts that stay with the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.measure.machine import Activity, activity


class CoreWatch:
    """Watches this process on its cores from now on."""

    def __init__(
        self, cores: Sequence[int], *, read: Callable[[Sequence[int]], Activity] = activity
    ) -> None:
        self._cores = cores
        self._read = read
        self._before = read(cores)

    def activity(self) -> Activity:
        """What has happened since it began to watch."""
        return self._read(self._cores).since(self._before)
