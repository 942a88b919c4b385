"""A question that is asked in a process of its own: whatever breaks there, the asker goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, NamedTuple

from tunefarm.configs.temporary_folders import on_leaving
from tunefarm.measure.sandbox.by_name import module_command

_KEPT_TEXT = 2000
_MOST_OUTPUT = 16 << 20


class Answer(NamedTuple):
    """What a process wrote to stdout; `failure` is how it ended, "" if it ended well."""

    output: bytes
    failure: str


def ask_isolated(module: str, arguments: Sequence[str], seconds: float) -> Answer:
    """Run `python -m MODULE` for so many seconds at most.

    Its group is killed with it when it is late. A process that it started in another group may
    outlive it; the answer does not wait for that.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                module_command(module, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return Answer(b"", f"no process can be started: {error.strerror or error}")
        forget = on_leaving(lambda: _kill(process))
        try:
            code = process.wait(seconds)
            failure = "" if code == 0 else _how(code)
        except subprocess.TimeoutExpired:
            failure = f"no answer within {seconds:g} s"
        finally:
            if process.returncode != 0:
                _kill(process)
            forget()
        output.seek(0)
        if failure and (said := _last_line(errors)):
            failure = f"{failure}: {said}"
        return Answer(output.read(_MOST_OUTPUT), failure)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # all of it has ended already
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _how(code: int) -> str:
    if code > 0:
        return f"it ended with code {code}"
    known = -code in signal.valid_signals()
    return f"it ended with {signal.Signals(-code).name if known else f'signal {-code}'}"


def _last_line(errors: IO[bytes]) -> str:
    """The end of what was written to stderr: of a traceback the error."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _KEPT_TEXT))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
