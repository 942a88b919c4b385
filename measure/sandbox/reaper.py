"""A small process that outlives a killed driver and ends what an embedded Ray left behind.

Ray's own processes watch each other, but when the driver is killed soon after its start some of
them stay for minutes. They are found in two ways: all inherit the environment variable
`TAG_VARIABLE` with a value of this run alone, and those that overwrite their environment (as
processes that set a title do) are noted as descendants of tagged ones while those live. Run as a
script, without importing anything of ours, so that it starts in milliseconds and stays small.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TAG_VARIABLE = "TUNEFARM_RUN"
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.05


class Process(NamedTuple):
    """A process for certain: ids are used again, but not with the same start time."""

    id: int
    started: int


class Reaper:
    """Watches this process: when it dies or calls `close`, the run's processes are ended."""

    def __init__(self, tag: str, *folders: str) -> None:
        """Start watching. `folders` go with the run."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, tag, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def note(self) -> None:
        """Remember the run's processes as they are now."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"note\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Tell the reaper that the run is over."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def close(self) -> None:
        """Tell the reaper that the run is over, and wait until no process is left."""
        self.end()
        self._process.wait()


def run_processes(tag: str, variable: str = TAG_VARIABLE) -> set[Process]:
    """The processes that were started with this tag, and their descendants; not this one."""
    wanted = f"{variable}={tag}".encode()
    children: defaultdict[int, list[Process]] = defaultdict(list)
    found: list[Process] = []
    for entry in _processes():
        with suppress(OSError):  # it ended meanwhile, or is not ours to read
            process, parent = _identify(int(entry.name))
            children[parent].append(process)
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(process)
    result: set[Process] = set()
    while found:
        process = found.pop()
        if process not in result and process.id != os.getpid():
            result.add(process)
            found += children[process.id]
    return result


def runnable_seconds(processes: Iterable[Process]) -> float:
    """For how long the main threads of these have computed or waited for a core; of one that has
    ended nothing."""
    total = 0
    for process in processes:
        with suppress(OSError, ValueError):  # it ended meanwhile
            computed, waited, _ = Path("/proc", str(process.id), "schedstat").read_text().split()
            total += int(computed) + int(waited)
    return total / 1e9


def holders(folders: Sequence[str]) -> set[Process]:
    """The processes that have a file open below one of the folders; not this one or its parent."""
    found: set[Process] = set()
    starts = tuple(f"{folder}/" for folder in folders)
    for entry in _processes():
        with suppress(OSError):  # it ended meanwhile, or is not ours to read
            if any(os.readlink(link).startswith(starts) for link in (entry / "fd").iterdir()):
                found.add(_identify(int(entry.name))[0])
    return {process for process in found if process.id not in (os.getpid(), os.getppid())}


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())


def end_run(tag: str, noted: set[Process], folders: Sequence[str] = ()) -> None:
    """Kill the run's processes until none is left: they hold nothing that anybody needs.

    Those that have files of the run's `folders` open are among them: agents of Ray's that started
    late overwrite their environment and lose their parents.
    """
    start = time.monotonic()
    while left := {
        process for process in noted | run_processes(tag) | holders(folders) if is_alive(process)
    }:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.id, signal.SIGKILL)
        if time.monotonic() - start > _KILL_SECONDS:
            return
        time.sleep(_POLL_SECONDS)


def _identify(process: int) -> tuple[Process, int]:
    """The process with its start time, and its parent's id; raises OSError when it is gone."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        raise ProcessLookupError(process)
    return Process(process, int(fields[19])), int(fields[1])


def is_alive(process: Process) -> bool:
    """Whether this very process runs; a zombie does not."""
    with suppress(OSError):
        return _identify(process.id)[0] == process
    return False


def main(tag: str, *folders: str) -> None:
    """Serve the driver until its end of the pipe closes, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the driver has ended
    noted: set[Process] = set()
    for _ in sys.stdin:
        noted |= run_processes(tag)
    end_run(tag, noted, folders)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
