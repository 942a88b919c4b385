"""Ctrl-C, SIGTERM, SIGHUP: the first asks a job to stop, the second ends it; else the first does.

A signal that was ignored when the process started (nohup) stays ignored. SIGXCPU, by which the
kernel says that the CPU time is used up (`ulimit -t`), asks as well; it comes every second.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any, NoReturn

from tunefarm.configs.resource_limits import CPU_TIME, describe
from tunefarm.configs.temporary_folders import leave

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)
_LAST_CPU_SECONDS = 5
"""What a process keeps of its CPU time to end by itself, before the kernel kills it."""
_ONE_REQUEST_SECONDS = 0.5
"""Programs that end others send to a process and then to its group: that is one request."""


class Interrupt:
    """Whether a stop was asked for, and whom to tell."""

    def __init__(self) -> None:
        self.asked = False
        self._at_once = False
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the first signal; at once if that has come already."""
        self._listeners.append(listener)
        if self.asked:
            listener()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within the block the first signal raises: nothing that it does could look at `asked`."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def ask(self) -> None:
        """Ask for a stop; asked a second time, or within `at_once`, raise KeyboardInterrupt."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self._at_once and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        for listener in self._listeners:
            listener()


class SignalHandler:
    """What is done when a signal comes."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.number: int | None = None  # of the first that came
        self.interrupt: Interrupt | None = None  # who is asked first
        self._clock = clock
        self._when = 0.0
        self._raised = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take signal `number`, as a handler given to `signal.signal` does."""
        now = self._clock()
        if self.number is None:
            self.number, self._when = number, now
        elif number == signal.SIGXCPU:
            return
        elif self._raised or now - self._when < _ONE_REQUEST_SECONDS:
            return  # what is being ended cleans up, which must not be broken off
        if self.interrupt is None or self.interrupt.asked:
            self._raised = True
            raise KeyboardInterrupt
        self.interrupt.ask()


_process_handler: SignalHandler | None = None
_interrupts: dict[int, Interrupt] = {}
"""Who is asked first, by the number of the thread that works."""


def catch_signals() -> None:
    """From now on the signals raise KeyboardInterrupt, once, in the main thread. Idempotent.

    The kernel sends SIGXCPU early enough.
    """
    global _process_handler
    if _process_handler is None:
        _process_handler = SignalHandler()
        _install(_process_handler)
        CPU_TIME.warn_before(_LAST_CPU_SECONDS)


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals wait for the end of the block; threads that start within it never get any.

    While Ray starts it has handlers of its own for a moment, and the main thread takes no signal:
    then no other thread must take one.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def ignore_signals() -> None:
    """What is left to do is done whatever comes."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def interrupted() -> bool:
    """Whether a signal has come since `catch_signals`."""
    return _process_handler is not None and _process_handler.number is not None


def asked_to_stop() -> bool:
    """Whether the work of this thread, `interruptible`, was asked to stop."""
    interrupt = _interrupts.get(threading.get_ident())
    return interrupt is not None and interrupt.asked


def interruption() -> str:
    """What has interrupted this process, for people."""
    if _process_handler is None or _process_handler.number != signal.SIGXCPU:
        return "interrupted"
    return f"interrupted: the CPU time is used up ({describe(CPU_TIME) or 'ulimit -t'})"


def exit_code() -> int:
    """Of a process that a signal has ended, as shells have it."""
    number = None if _process_handler is None else _process_handler.number
    return 128 + (signal.SIGINT if number is None else number)


def end_interrupted() -> NoReturn:
    """End the process that a signal has interrupted, with nothing left behind."""
    ignore_signals()
    leave()
    os._exit(exit_code())  # threads may still wait for what has been ended


def interrupt_thread(thread: threading.Thread) -> bool:
    """Have the work of a thread end as Ctrl-C would have it; whether it was told. From any thread.

    The main thread gets a signal, one that is not ignored. Another one is raised while it is
    `interruptible`.
    """
    if thread is threading.main_thread():
        caught = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
        for number in caught[:1]:
            signal.pthread_kill(thread.ident or 0, number)
        return bool(caught)
    interrupt = _interrupts.get(thread.ident or 0)
    if interrupt is None or interrupt.asked:
        return interrupt is not None
    interrupt.ask()
    return True


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Signals ask the yielded Interrupt while the block runs (in the main thread only), and so does
    `interrupt_thread`."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        number_of_thread = threading.get_ident()
        _interrupts[number_of_thread] = interrupt
        try:
            yield interrupt
        finally:
            del _interrupts[number_of_thread]
        return
    handler = _process_handler or SignalHandler()
    handler.interrupt = interrupt
    before = _install(handler)
    number_of_thread = threading.get_ident()
    _interrupts[number_of_thread] = interrupt
    try:
        yield interrupt
    finally:
        handler.interrupt = None
        _interrupts.pop(number_of_thread, None)
        for number, former in before.items():
            signal.signal(number, former)


def _install(handler: SignalHandler) -> dict[signal.Signals, Any]:
    """Handle the signals that are not ignored; what was done before."""
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    caught = {
        number: former
        for number, former in before.items()
        if former is not None and former is not signal.SIG_IGN
    }
    for number in caught:
        signal.signal(number, handler)
    return caught
