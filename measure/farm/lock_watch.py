"""Says for whom a runner's workers wait for their cores, while they do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tunefarm.measure.core_locks import TOLD_SECONDS, CoreLocks, wait_text

_POLL_SECONDS = 1.0


class LockWatch:
    """Looks from a thread of its own; tells of a wait when it is long, and again when it has taken
    twice as long."""

    def __init__(
        self, locks: CoreLocks, cores: Sequence[int], notify: Callable[[str], None] | None
    ) -> None:
        """`locks` are those of the runner's driver, `cores` all that it uses."""
        self._locks = locks
        self._cores = cores
        self._notify = notify
        self._text: dict[str, float] = {}  # after so many seconds
        self._closed = threading.Event()
        if notify is not None:
            threading.Thread(target=self._watch, name="tunefarm-lock-watch", daemon=True).start()

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._closed.set()

    def look(self) -> None:
        """Look once."""
        waits = self._locks.waits(self._cores)
        self._text = {whom: text for whom, text in self._text.items() if whom in waits}
        for whom, seconds in waits.items():
            if self._notify is not None and seconds >= 2 * self._text.get(whom, TOLD_SECONDS / 2):
                self._text[whom] = seconds
                self._notify(wait_text(whom, seconds))

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            self.look()
