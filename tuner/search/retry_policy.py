"""What a job does while its database cannot be written: it waits, says so, and goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from tunefarm.configs.errors import DatabaseMovedError, DatabaseUnavailableError
from tunefarm.tuner.reports.progress import Progress

RETRY_SECONDS = 1.0
REMIND_SECONDS = 60.0


class RetryPolicy:
    """Asked by a store before it gives up (`Store.patience`). After `stop` it waits no more."""

    def __init__(
        self,
        progress: Progress,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._sleep = sleep
        self._clock = clock
        self._stopped = False
        self._said = -REMIND_SECONDS

    def stop(self) -> None:
        """Wait no more; safe to call from a signal handler."""
        self._stopped = True

    def __call__(self, error: DatabaseUnavailableError) -> bool:
        """Wait and report; whether to try again."""
        if isinstance(error, DatabaseMovedError):  # and the store goes on
            self._progress.message(error.message)
            return True
        if self._stopped:
            return False
        now = self._clock()
        if now - self._said >= REMIND_SECONDS:
            self._said = now
            self._progress.message(
                f"{error.message}: the job pauses and goes on when the database can be written"
                " (Ctrl-C ends it; what was recorded is safe)"
            )
        self._sleep(RETRY_SECONDS)
        return not self._stopped
