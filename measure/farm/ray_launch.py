"""Has Ray start, or tries whether a cluster can be joined, by a process that has so much time.

Without a loopback interface, with too few processes allowed or too little shared memory Ray waits
for minutes in calls that no signal interrupts, or ends its process. That happens to a child
(`ray_child`) here: the process that tunes hears signals meanwhile, and joins what has answered.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.machine.control_groups import ControlGroups
from tunefarm.configs.resource_limits import PROCESSES, threads_of
from tunefarm.configs.temporary_folders import on_leaving
from tunefarm.measure.farm.ray_address import WITHOUT_RAY, check_loopback
from tunefarm.measure.sandbox.by_name import module_command
from tunefarm.measure.sandbox.reaper import (
    TAG_VARIABLE,
    end_run,
    run_processes,
    runnable_seconds,
)
from tunefarm.measure.sandbox.worker_process import Countdown

ADDRESS_FILE = "ray_current_cluster"
"""Where Ray notes the address of a head, in its folder."""
REFUSED = "refused: "
"""What a line on stderr begins with that says why nothing was started."""
_START_SECONDS = 18.0  # Ray starts and is joined within 3 to 8 on two cores
_BUSY_SECONDS = 120.0
_BUSY_SHARE = 0.3  # a start that goes on has about 1, daemons that wait for something 0.05
_REFUSED_CODE = 2  # of ray_child, for what no other runner would change
_OUT_OF_PROCESSES = ("Resource temporarily unavailable", "can't start new thread")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be started, or tried.

    A `driver` tries to join the cluster at `address`; a `head` starts one with Ray's own files in
    `folder`, and tries; a `node` joins it as one. `arguments` are those of `ray start`. `alone`: on
    the loopback interface only.
    """

    role: Literal["head", "node", "driver"]
    address: str
    folder: str
    alone: bool
    arguments: tuple[str, ...] = ()


def launch(wanted: Wanted, environment: Mapping[str, str]) -> None:
    """Do what is wanted with this environment, which has a tag; what is started stays.

    Raises MeasureError, and then nothing is left running.
    """
    if wanted.alone:
        check_loopback()
    tag = environment[TAG_VARIABLE]
    arguments = [json.dumps(asdict(wanted)), str(os.getpid())]
    try:
        # Ray's daemons keep what they print to open, so that is a file.
        with Path(wanted.folder, "start.log").open("w+", errors="replace") as log:
            process = subprocess.Popen(
                module_command("tunefarm.measure.farm.ray_child", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            code = _exit_code(process, tag, wanted.folder)
            log.seek(0)
            lines = [line.strip() for line in log if line.strip()]
    except OSError as error:
        raise refusal(f"no process can be started: {error}") from error
    if code == 0:
        return
    refused = [line.removeprefix(REFUSED) for line in lines if line.startswith(REFUSED)]
    if refused and code == _REFUSED_CODE:
        raise MeasureError(refused[-1])
    late = [f"no answer within {_START_SECONDS:g} s"] if code is None else []
    raise refusal((late or refused or lines or ["no reason given"])[-1], wanted.folder, lines)


def happens_in_time(happens: Callable[[float], bool], seconds: float, tag: str) -> bool:
    """Whether what a run's processes are to do happens in so many seconds.

    Those in which one of them computes, or waits for a core, do not count, up to a limit: what
    hangs does neither. `happens` waits for as many seconds as its argument says.
    """
    countdown, end = Countdown(seconds), time.monotonic() + _BUSY_SECONDS
    used = 0.0

    def looks(piece: float) -> bool:
        nonlocal used
        if happens(piece):
            return True
        former, used = used, runnable_seconds(run_processes(tag))
        if used - former > _BUSY_SHARE * piece and time.monotonic() < end:
            countdown.left += piece
        return False

    return countdown.wait(looks)


def refusal(reason: str, folder: str = "", lines: Sequence[str] = ()) -> MeasureError:
    """That Ray cannot measure here, and what can.

    `lines` were printed, others are in the logs of Ray's daemons in `folder`: if one says that
    processes or threads were refused, that is the reason.
    """
    said = [*lines, *_log_lines(folder)]
    if any(word in line for line in said for word in _OUT_OF_PROCESSES):
        reason = "the limit of processes is reached (ulimit -u, or the container's pids limit)"
    return MeasureError(f"Ray did not start: {reason}", hint=WITHOUT_RAY)


def _exit_code(process: subprocess.Popen[bytes], tag: str, folder: str) -> int | None:
    """The exit code of the child; None if it is late. What it started stays if that is 0."""

    def end() -> None:
        process.kill()
        process.wait()
        end_run(tag, set(), [folder])

    def ends(piece: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            process.wait(piece)
        return process.returncode is not None

    forget, code = on_leaving(end), None
    try:
        happens_in_time(ends, _START_SECONDS, tag)
        code = process.returncode
    finally:
        if code != 0:  # an interrupt as well: nothing may be left running
            end()
        forget()
    return code


def _log_lines(folder: str) -> list[str]:
    """The lines of the log files of Ray's daemons."""
    found: list[str] = []
    for path in Path(folder).glob("session_*/logs/*") if folder else ():
        with suppress(OSError):
            found += path.read_text(errors="replace").splitlines()
    return found


_DAEMONS = 130
_EACH_WORKER = 45
"""Threads of Ray 2.60 on two cores: its daemons with the driver, and each worker process (232 were
counted with two workers)."""


def check_threads(workers: int, groups: ControlGroups | None = None) -> None:
    """Raise MeasureError unless Ray and so many worker processes can start their threads.

    Without them its daemons crash or hang, each in its own way and after minutes.
    """
    needed = _DAEMONS + _EACH_WORKER * workers
    for free, limit in _limits(groups or ControlGroups()):
        if free < needed:
            raise MeasureError(
                f"Ray needs about {needed} threads, and {max(0, free)} more can be started here: "
                f"the limit is {limit}",
                hint="raise it, or measure without Ray: --runner local",
            )


def _limits(groups: ControlGroups) -> Iterator[tuple[int, str]]:
    free = groups.free_threads()
    if free is not None:
        yield free, "pids.max of a control group"
    most = PROCESSES.value
    if most is not None and os.geteuid() != 0:  # root is exempt
        yield most - threads_of(os.getuid()), f"ulimit -u, {most}"
