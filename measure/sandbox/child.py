"""The disposable worker process: `python -m tunefarm.measure.sandbox.child SETTINGS`.

It reads framed requests on stdin and answers on stdout; both are moved to other descriptors first,
so that nothing a library or a kernel prints can reach a frame. One program serves several roles: a
builder compiles candidates, a measuring process runs them; they never share a process, because
only the latter runs foreign code. In a third role it reads one ONNX file.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

from tunefarm.compiler.function_modules import load_modules
from tunefarm.configs.errors import TunefarmError
from tunefarm.configs.memory_room import require_libraries
from tunefarm.configs.resource_limits import limit_behind
from tunefarm.measure.machine import cores_lost, pin
from tunefarm.measure.measurement import Status
from tunefarm.measure.sandbox.by_name import by_name
from tunefarm.measure.sandbox.limits import die_with, is_spent, limit, limit_cpu
from tunefarm.measure.sandbox.messages import Message, read_message, write_message
from tunefarm.measure.sandbox.versions import code_stamp
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
    try:
        require_libraries()
        load_modules(settings.functions)
        role: _Role = by_name(arguments[2])(settings)
    except (TunefarmError, OSError, ImportError, MemoryError) as error:
        write_message(replies, Message({"failed": _in_a_line(error, settings)}))
        return 1
    gc.disable()  # no collection may fall into a timed run
    gc.freeze()
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    write_message(replies, Message({"ready": os.getpid(), "nice": nice, "code": code_stamp()}))
    while (request := read_message(requests)) is not None:
        write_message(replies, _answer(role, request, settings))
        gc.collect()
    return 0


class _Role(Protocol):
    """What a worker process does with a request."""

    def answer(self, message: Message) -> Message: ...


def _answer(role: _Role, request: Message, settings: WorkerSettings) -> Message:
    """The reply to one request. Failures of our own are INFRASTRUCTURE, with the traceback; so is
    what was done elsewhere than on the cores that the request names, all or part of the time."""
    seconds = request.fields["cpu_seconds"]
    limit_cpu(seconds)
    cores = frozenset(request.fields.get("cores", ()))
    if cores and (lost := pin(cores)):
        return _lost(lost)
    try:
        reply = role.answer(request)
        if lost := cores - os.sched_getaffinity(0):
            return _lost(lost)
    except MemoryError as error:
        limit = limit_behind(error)
        text = f"out of memory: {error}" + (f" ({limit})" if limit else "")
        return _failure(Status.OUT_OF_MEMORY, text)
    except Exception as error:  # noqa: BLE001 - the loop must answer; this process is replaced
        text = "".join(traceback.format_tb(error.__traceback__))
        return _failure(Status.INFRASTRUCTURE, f"{text}{_in_a_line(error, settings)}")
    return Message({**reply.fields, "retire": True}, reply.blob) if is_spent(seconds) else reply


def _in_a_line(error: Exception, settings: WorkerSettings) -> str:
    """What an error says, with what of the machine is behind it and what to do."""
    text = (str(error).strip().splitlines() or ["no reason given"])[-1]
    if isinstance(error, TunefarmError):
        return text
    text = f"{type(error).__name__}: {text}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = Path(settings.scratch).parent
        return f"{text}: there is no room in {place}; name a folder with room in TMPDIR"
    limit = limit_behind(error)
    return f"{text} ({limit})" if limit else text


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
