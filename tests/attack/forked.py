"""Runs a function in a fork of this process under limits, so that thousands of attempts are cheap.

A fork has everything imported already: an attempt costs milliseconds where a new interpreter
costs a second. Whatever it does, crash, hang or eat memory, is a value here.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tunefarm.measure.sandbox.limits import die_with

MEMORY_BYTES = 4 << 30
SECONDS = 60.0


class End(StrEnum):
    """The ways in which a fork ends."""

    RETURNED = "returned"
    RAISED = "raised"
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Forked:
    """How a function ended: `text` is what it returned, its traceback, or its signal's name."""

    end: End
    text: str


def run_forked(
    function: Callable[[], str], *, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES
) -> Forked:
    """Call `function` in a fork that may allocate `memory_bytes` and take `seconds`.

    The fork is the leader of a process group, which is killed at the end: nothing that the
    function started is left over. Its stdout and stderr go to /dev/null.
    """
    readable, writable = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(readable)
        _serve(function, writable, memory_bytes, parent)
    os.close(writable)
    try:
        content = _read_until(readable, time.monotonic() + seconds)
    finally:
        os.close(readable)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:  # it has not yet become a leader, or is gone with its group
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if content is None:
        return Forked(End.HUNG, f"no answer within {seconds:g} s")
    if not content:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        name = signal.Signals(number).name if number else f"exit status {status}"
        return Forked(End.CRASHED, name)
    end, text = json.loads(content)
    return Forked(End(end), text)


def _serve(function: Callable[[], str], writable: int, memory_bytes: int, parent: int) -> None:
    """The fork: run the function, write how it ended, and wait for the end without any clean-up."""
    try:
        die_with(parent)
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        faulthandler.disable()  # a test runner's would write to a file of its own
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            answer = (End.RETURNED, function())
        except MemoryError:
            answer = (End.OUT_OF_MEMORY, traceback.format_exc())
        except BaseException:  # noqa: BLE001 - a value for the parent, whatever it is
            answer = (End.RAISED, traceback.format_exc())
        content = json.dumps(answer).encode()
        while content:
            content = content[os.write(writable, content) :]
    finally:
        os.close(writable)
        signal.pause()  # the parent ends the whole group at once


def _read_until(readable: int, deadline: float) -> bytes | None:
    """All that is written, to the end; None if that does not come in time."""
    content = b""
    while select.select([readable], [], [], max(deadline - time.monotonic(), 0.0))[0]:
        piece = os.read(readable, 1 << 16)
        if not piece:
            return content
        content += piece
    return None
