"""The disposable worker process: `python -m measure.child SETTINGS`.

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
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from compiler.kernels.serialize import kernel_from_json
from compiler.target import Target
from measure.build_candidate import build_candidate, load_compile, unpack_candidates
from measure.job import MeasureRequest, Status
from measure.limits import die_with, limit, limit_cpu
from measure.messages import Message, read_message, write_message
from measure.reference import ensure_reference
from measure.timer import TimingOptions
from measure.worker_settings import WorkerSettings


def main(arguments: list[str]) -> int:
    """Serve requests until stdin ends. `arguments`: settings as JSON, parent's process id, role."""
    settings = WorkerSettings.from_json(arguments[0])
    die_with(int(arguments[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = _claim_pipes()
    limit(settings)
    faulthandler.enable()
    role = _ROLES[arguments[2]](settings)
    gc.disable()  # no collection may fall into a timed run
    gc.freeze()
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    write_message(replies, Message({"ready": os.getpid(), "nice": nice}))
    while (request := read_message(requests)) is not None:
        write_message(replies, _answer(role, request))
        gc.collect()
    return 0


class _Role(Protocol):
    """What a worker process does with a request."""

    def answer(self, message: Message) -> Message: ...


class _Builder:
    """Compiles candidates, and computes the reference of each kernel that it has not seen."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._scratch = Path(settings.scratch)
        self._compile = load_compile(settings.compile)
        self._target = Target.from_json(settings.target)

    def answer(self, message: Message) -> Message:
        fields = message.fields["request"]
        request = MeasureRequest(**{**fields, "rivals": tuple(fields["rivals"])})
        os.sched_setaffinity(0, message.fields["cores"])
        result = build_candidate(request, self._target, self._compile)
        if result.status is Status.OK:
            kernel = kernel_from_json(request.kernel)
            ensure_reference(kernel, request.workload_key, self._scratch)
        reply = {
            "status": str(result.status),
            "error": result.error,
            "build_seconds": result.build_seconds,
            "culprit": result.culprit,
        }
        return Message(reply, result.candidates)


class _Importer:
    """Reads ONNX files."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._scratch = Path(settings.scratch)

    def answer(self, message: Message) -> Message:
        from measure.import_model import answer_import

        return answer_import(message.fields, self._scratch)


class _Measurer:
    """Checks and times candidates: the only place where foreign code runs."""

    def __init__(self, settings: WorkerSettings) -> None:
        from measure.run_candidate import CandidateRunner

        self._runner = CandidateRunner(Path(settings.scratch), settings.threads, settings.cores)

    def answer(self, message: Message) -> Message:
        fields = message.fields
        outcome = self._runner.run(
            fields["kernel"],
            fields["workload_key"],
            unpack_candidates(message.blob),
            TimingOptions.of(fields["options"]),
            fields["seed"],
        )
        return Message(outcome.to_json())


_ROLES: dict[str, Callable[[WorkerSettings], _Role]] = {
    "build": _Builder,
    "import": _Importer,
    "measure": _Measurer,
}


def _answer(role: _Role, request: Message) -> Message:
    """The reply to one request. Failures of our own are INFRASTRUCTURE, with the traceback."""
    limit_cpu(request.fields["cpu_seconds"])
    try:
        return role.answer(request)
    except MemoryError as error:
        return _failure(Status.OUT_OF_MEMORY, f"out of memory: {error}")
    except Exception:  # noqa: BLE001 - the loop must answer; the supervisor replaces this process
        return _failure(Status.INFRASTRUCTURE, traceback.format_exc())


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
