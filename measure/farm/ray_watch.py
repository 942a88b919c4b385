"""Notices when an embedded Ray dies, long before Ray's own health checks do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.sandbox.reaper import Process, is_alive, run_processes

_DAEMONS = ("raylet", "gcs_server")
_POLL_SECONDS = 0.5


def ray_daemons(tag: str) -> set[Process]:
    """The daemons of the Ray that was started with this tag (see
    `tunefarm.measure.sandbox.reaper`)."""
    return {process for process in run_processes(tag) if program_of(process) in _DAEMONS}


def program_of(process: Process) -> str:
    """The name of the program that a process runs; empty if it is gone."""
    try:
        command = Path("/proc", str(process.id), "cmdline").read_bytes()
    except OSError:
        return ""
    return Path(command.split(b"\0")[0].decode(errors="replace")).name


class RayWatch:
    """Watches processes from a thread of its own; tells once when one of them is gone."""

    def __init__(
        self, processes: Iterable[Process], notify: Callable[[MeasureError], None]
    ) -> None:
        self._processes = set(processes)
        self._notify = notify
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tunefarm-ray-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            if not all(map(is_alive, self._processes)):
                hint = "what was measured is recorded; the same command goes on from there"
                self._notify(MeasureError("Ray has ended, not by us", hint=hint))
                return
