"""Ctrl-C and SIGTERM: the first asks the job to stop, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Whether a stop was asked for, and whom to tell."""

    def __init__(self) -> None:
        self.asked = False
        self._listeners: list[Callable[[], None]] = []

    def tell(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the first signal; at once if that has come already."""
        self._listeners.append(listener)
        if self.asked:
            listener()

    def ask(self) -> None:
        """Ask for a stop; asked a second time, raise KeyboardInterrupt."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        for listener in self._listeners:
            listener()


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Signals ask the yielded Interrupt while the block runs (in the main thread only)."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def handle(number: int, frame: FrameType | None) -> None:
        interrupt.ask()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
