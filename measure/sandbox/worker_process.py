"""The parent's side of a worker process: starts it, owns the deadline, says how it ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import BinaryIO, NamedTuple

from tunefarm.compiler.errors import MeasureError
from tunefarm.configs.resource_limits import CPU_TIME, FILE_SIZE, describe, limit_behind
from tunefarm.configs.temporary_folders import on_leaving
from tunefarm.measure.machine import oom_kills
from tunefarm.measure.measurement import Status
from tunefarm.measure.sandbox.by_name import module_command
from tunefarm.measure.sandbox.messages import (
    NOBODY,
    Decoder,
    Message,
    MessageError,
    encode,
    read_in_flight,
    write_in_flight,
)
from tunefarm.measure.sandbox.versions import code_stamp
from tunefarm.measure.sandbox.worker_settings import WorkerSettings

# A time limit that counts only time in which this process runs.

_PIECE_SECONDS = 1.0


class Countdown:
    """Seconds that are `left`."""

    def __init__(self, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self.left = seconds
        self._clock = clock

    def wait(self, happens: Callable[[float], bool]) -> bool:
        """Wait until `happens` within what is left; it gets how many seconds to wait at most, and
        looks even if that is 0."""
        while True:
            piece = min(max(0.0, self.left), _PIECE_SECONDS)
            begin = self._clock()
            if happens(piece):
                self.left -= min(self._clock() - begin, piece)
                return True
            self.left -= piece
            if self.left <= 0.0:
                return False


_KEPT_TEXT = 8192
_CHUNK = 1 << 20
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_OUTSIDE_SIGNALS = (*_ENDING_SIGNALS, signal.SIGKILL)


class Role(NamedTuple):
    """What a worker process does: `program` is the path `module:class` of what answers requests.

    After `most_requests` the process is replaced, whatever it leaked.
    """

    name: str
    program: str
    most_requests: int = 1


class WorkerLostError(MeasureError):
    """The worker went away through no fault of the candidate; the request may be tried again."""


class WorkerEndedError(WorkerLostError):
    """The worker was told to end, as when its machine is shut down: no candidate does that."""


class WorkerStartError(WorkerLostError):
    """No worker could be started; the request never reached one."""


class CoresLostError(MeasureError):
    """The worker's cores may not be used any more: nothing is built or timed there again."""


class WorkerEndError(Exception):
    """A worker process ended, or had to be ended, while it had a request.

    `status` says how, for a process that ran foreign code; `text` is the reason and what the
    process wrote to stderr; `in_flight` the number of what it was at, if it had noted one.
    `reported`: by a signal that asks a process to end.
    """

    def __init__(
        self, status: Status, text: str, in_flight: int | None = None, *, reported: bool = False
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.in_flight = in_flight
        self.reported = reported


def classify_exit(returncode: int, oom: bool, cpu_seconds: float = 0.0) -> tuple[Status, str]:
    """Status and reason for a worker that ended by itself; `oom`: the kernel's OOM killer struck.

    `cpu_seconds` is what it was allowed. A signal that only someone else can have sent, and a
    limit of the shell that is lower than ours, are INFRASTRUCTURE.
    """
    if returncode >= 0:
        return Status.CRASHED, f"the process exited with code {returncode}"
    number = -returncode
    name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
    if number == signal.SIGXCPU:
        most = CPU_TIME.value
        if most is not None and most < 2 * cpu_seconds:  # see `tunefarm.measure.sandbox.limits`
            return Status.INFRASTRUCTURE, f"killed for its CPU time: {CPU_TIME.text(most)}"
        return Status.RUN_TIMEOUT, "the limit of CPU time was exceeded (SIGXCPU)"
    if number == signal.SIGXFSZ and (limit := describe(FILE_SIZE)):
        return Status.INFRASTRUCTURE, f"killed for the size of a file that it wrote: {limit}"
    if number == signal.SIGKILL and oom:
        return Status.OUT_OF_MEMORY, "killed by the kernel for want of memory"
    if number in _OUTSIDE_SIGNALS:
        return Status.INFRASTRUCTURE, f"killed from outside by {name}"
    return Status.CRASHED, f"killed by {name}"


class WorkerProcess:
    """One exec'd worker process and the pipes to it. Start it from a thread that outlives it:
    the kernel kills it when the thread that started it ends.
    """

    def __init__(self, settings: WorkerSettings, role: Role) -> None:
        """Start the process; raises WorkerStartError when it does not get ready."""
        self.served = 0
        self._cpu_seconds = 0.0  # that the newest request may take
        self._errors, self._in_flight = _temporary_files(role.name)
        self._oom_kills = oom_kills()
        self._decoder = Decoder()
        reported = replace(settings, in_flight=self._in_flight.fileno())
        arguments = [reported.to_json(), str(os.getpid()), role.program]
        self._process = subprocess.Popen(
            module_command("tunefarm.measure.sandbox.child", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(settings.threads),
            start_new_session=True,
            bufsize=0,
            pass_fds=[self._in_flight.fileno()],
        )
        self._forget: Callable[[], None] = lambda: None
        self._forget = on_leaving(self.kill)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        try:
            ready = self._receive(Countdown(settings.start_timeout), "to start")
        except WorkerEndError as end:
            self.kill()
            raise WorkerStartError(f"a {role.name} worker did not start: {end.text}") from None
        if failed := ready.fields.get("failed"):
            self.close()
            raise WorkerStartError(f"a {role.name} worker did not start: {failed}")
        if (code := ready.fields["code"]) != code_stamp():
            self.close()
            raise WorkerStartError(
                f"tunefarm was changed after this job began: it runs {code_stamp()}, and what it "
                f"starts now runs {code}; start it again"
            )
        if ready.fields["nice"] > settings.niceness:
            self.close()
            raise WorkerStartError(
                f"a worker has niceness {ready.fields['nice']}, not {settings.niceness}: others "
                "would disturb what it measures (Ray needs RAY_worker_niceness=0 on every node)"
            )

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def request(self, message: Message, timeout: float) -> Message:
        """Send a request and wait for the reply; raises WorkerEndError when there is none."""
        self.served += 1
        self._cpu_seconds = float(message.fields["cpu_seconds"])
        self._oom_kills = oom_kills()
        os.ftruncate(self._errors.fileno(), 0)
        self._errors.seek(0)
        write_in_flight(self._in_flight.fileno(), NOBODY)
        countdown = Countdown(timeout)
        self._send(encode(message), countdown, timeout)
        return self._receive(countdown, f"within {timeout:g} s")

    def kill(self) -> None:
        """End the process group and reap the process. Idempotent, from any thread."""
        with suppress(ProcessLookupError):  # it has ended already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._forget()

    def close(self) -> None:
        """Kill the process and close its pipes; only when no request is under way."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors, self._in_flight):
            if stream is not None:
                stream.close()

    def _send(self, data: bytes, countdown: Countdown, timeout: float) -> None:
        view = memoryview(data)
        while view:
            if not countdown.wait(self._takes_more):
                raise self._timed_out(f"within {timeout:g} s")
            try:
                view = view[os.write(self._input, view[:_CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._ended() from None

    def _takes_more(self, seconds: float) -> bool:
        return bool(select.select([], [self._input], [], seconds)[1])

    def _has_answered(self, seconds: float) -> bool:
        return bool(select.select([self._output], [], [], seconds)[0])

    def _receive(self, countdown: Countdown, limit: str) -> Message:
        try:
            while (message := self._decoder.next()) is None:
                if not countdown.wait(self._has_answered):
                    raise self._timed_out(limit)
                data = os.read(self._output, _CHUNK)
                if not data:
                    raise self._ended()
                self._decoder.feed(data)
        except MessageError as error:
            self.kill()
            raise self._end(Status.CRASHED, f"{error}") from None
        return message

    def _timed_out(self, limit: str) -> WorkerEndError:
        self.kill()
        return self._end(Status.RUN_TIMEOUT, f"no answer {limit}")

    def _ended(self) -> WorkerEndError:
        """Why the pipe closed. A process that closed its pipe but lives on is killed."""
        try:
            returncode = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._end(Status.CRASHED, "the process closed its pipe")
        status, reason = classify_exit(returncode, oom_kills() > self._oom_kills, self._cpu_seconds)
        return self._end(status, reason, reported=-returncode in _ENDING_SIGNALS)

    def _end(self, status: Status, reason: str, *, reported: bool = False) -> WorkerEndError:
        return WorkerEndError(status, self.with_output(reason), self.in_flight, reported=reported)

    @property
    def in_flight(self) -> int | None:
        """The number of what the process was at last, of the newest request, if it noted one."""
        return read_in_flight(self._in_flight.fileno())

    def with_output(self, reason: str) -> str:
        """`reason`, and below it the end of what the process wrote to stderr for this request."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _KEPT_TEXT))
        text = self._errors.read().decode(errors="replace").strip()
        return f"{reason}\n{text}" if text else reason


def _temporary_files(role: str) -> tuple[BinaryIO, BinaryIO]:
    """For what a process writes to stderr, and for what is in flight. Raises WorkerStartError."""
    try:
        errors: BinaryIO = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - its owner closes it
        in_flight: BinaryIO = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        write_in_flight(in_flight.fileno(), NOBODY)
    except OSError as error:
        limit = limit_behind(error)
        raise WorkerStartError(
            f"a {role} worker did not start: {tempfile.gettempdir()}: {error.strerror or error}",
            hint="" if limit else "name a folder with room in TMPDIR",
        ) from error
    return errors, in_flight


def _environment(threads: int) -> dict[str, str]:
    """The worker's environment: as many OpenMP threads as asked."""
    counts = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        **os.environ,  # noqa: TID251
        **counts,
        "OMP_NUM_THREADS": str(threads),
    }
