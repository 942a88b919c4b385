"""A turn of an entry: `tune --model …` in a process of its own, which may crash alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tunefarm.measure.sandbox.module_command import module_command
from tunefarm.tuner.interrupt import signals_held

LAST_LINES = 20
_KILL_SECONDS = 10.0

Command = Callable[[Sequence[str]], list[str]]
"""The command line of a process that does what `tune` does with these arguments."""


def tune_command(arguments: Sequence[str]) -> list[str]:
    """`tune` by this interpreter, ended when this process is."""
    return module_command("tunefarm.tuner.commands.turn", str(os.getpid()), *arguments)


class TurnProcess:
    """The process of a turn. What it says on stderr goes to `tell`, line by line."""

    def __init__(
        self, command: Sequence[str], folder: str, result: Path, notify: Callable[[str], None]
    ) -> None:
        """Start it. Raises OSError if that fails; `result` is the file that it writes."""
        self._result = result
        self._notify = notify
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            list(command),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=True,  # Ctrl-C on a terminal is for the runner alone
        )
        self._reader = threading.Thread(target=self._read, name="turn", daemon=True)
        with signals_held():  # the thread gets none
            self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """Wait until it ends, for at most so long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def interrupt(self) -> None:
        """Ask it to end cleanly. Not by SIGINT, which shells have background jobs ignore."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its group at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End it, cleanly if it does not take long, and let go of everything."""
        if self.poll() is None:
            self.interrupt()
            self.wait(_KILL_SECONDS)
        if self.poll() is None:
            self.kill()
        self._process.wait()
        self._reader.join(1.0)  # a process that it has left behind may hold the pipe
        if self._process.stderr is not None and not self._reader.is_alive():
            self._process.stderr.close()

    def result(self) -> dict[str, Any] | None:
        """What it has written; None if it has not."""
        try:
            found = json.loads(self._result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def reason(self) -> str:
        """Why it failed, as one line."""
        code = self.poll()
        said = [line.removeprefix("error: ") for line in self._lines if line.startswith("error: ")]
        if code is not None and code < 0:
            return f"its process was ended by {_signal_name(-code)}"
        if said:
            return said[-1]
        return f"its process ended with status {code} and gave no reason"

    def _read(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with suppress(OSError, ValueError):
            for line in stream:
                self._lines.append(line.rstrip("\n"))
                self._notify(line.rstrip("\n"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
