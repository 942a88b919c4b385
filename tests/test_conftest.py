"""No test waits for ever: what it waits for is broken off at its limit."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from tests.conftest import OutOfTimeError, limited


def of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            process.wait()
        finally:
            process.kill()


def of_a_lock() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def of_a_queue() -> None:
    queue.Queue[None]().get()


@pytest.mark.parametrize("wait", [of_a_process, of_a_lock, of_a_queue])
def test_a_wait_without_a_limit_ends_at_the_limit_of_the_test(wait: Callable[[], None]) -> None:
    with pytest.raises(OutOfTimeError, match=r"not done after 0\.2 s"), limited(0.2):
        wait()
