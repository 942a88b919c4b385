"""The disposable worker process: `python -m tunefarm.measure.sandbox.child SETTINGS`.

It reads framed requests on stdin and answers on stdout; both are moved to other descriptors first,
so that nothing a library or a kernel prints can reach a frame. One program serves several roles: a
builder compiles candidates, a measuring process runs them; they never share a process, because
only the latter runs foreign code. In a third role it reads one ONNX file.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from typing import BinaryIO, Protocol

from tunefarm.compiler.function_modules import load_modules
from tunefarm.measure.machine import cores_lost, pin
from tunefarm.measure.measurement import Status
from tunefarm.measure.sandbox.by_name import by_name
from tunefarm.measure.sandbox.code_stamp import code_stamp
from tunefarm.measure.sandbox.limits import die_with, limit, limit_cpu
from tunefarm.measure.sandbox.messages import Message, read_message, write_message
from tunefarm.measure.sandbox.worker_settings import WorkerSettings


def main(arguments: list[str]) -> int:
    """Serve requests until stdin ends. `arguments`: settings as JSON, parent's process id, role.

    The role is the path of its class; it imports what it needs, which takes longer than to begin.
    """
    settings = WorkerSettings.from_json(arguments[0])
    die_with(int(arguments[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = _claim_pipes()
    limit(settings)
    faulthandler.enable()
    load_modules(settings.functions)
    role: _Role = by_name(arguments[2])(settings)
    gc.disable()  # no collection may fall into a timed run
    gc.freeze()
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    write_message(replies, Message({"ready": os.getpid(), "nice": nice, "code": code_stamp()}))
    while (request := read_message(requests)) is not None:
        write_message(replies, _answer(role, request))
        gc.collect()
    return 0


class _Role(Protocol):
    """What a worker process does with a request."""

    def answer(self, message: Message) -> Message: ...


def _answer(role: _Role, request: Message) -> Message:
    """The reply to one request. Failures of our own are INFRASTRUCTURE, with the traceback; so is
    what was done elsewhere than on the cores that the request names, all or part of the time."""
    limit_cpu(request.fields["cpu_seconds"])
    cores = frozenset(request.fields.get("cores", ()))
    if cores and (lost := pin(cores)):
        return _lost(lost)
    try:
        reply = role.answer(request)
        lost = cores - os.sched_getaffinity(0)
        return _lost(lost) if lost else reply
    except MemoryError as error:
        return _failure(Status.OUT_OF_MEMORY, f"out of memory: {error}")
    except Exception:  # noqa: BLE001 - the loop must answer; the supervisor replaces this process
        return _failure(Status.INFRASTRUCTURE, traceback.format_exc())


def _lost(cores: Iterable[int]) -> Message:
    fields = {"status": str(Status.INFRASTRUCTURE), "error": cores_lost(cores)}
    return Message({**fields, "lost_cores": sorted(cores)})


def _failure(status: Status, error: str) -> Message:
    return Message({"status": str(status), "error": error, "retire": True})


def _claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Take stdin and stdout for frames; afterwards stdin is empty and stdout goes to stderr."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
