"""An embedded Ray listens on loopback alone, in sessions of its own, and changes no signal."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.ray_runner import RayRunner
from tunefarm.measure.sandbox.reaper import Process, holders

_LISTENS = "0A"
_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def sockets_of(processes: set[Process]) -> set[str]:
    """The inodes of the sockets that processes have open."""
    found = set()
    for process in processes:
        try:
            names = [os.readlink(path) for path in Path(f"/proc/{process.id}/fd").iterdir()]
        except OSError:  # it ended meanwhile
            continue
        found |= {match[1] for name in names if (match := re.fullmatch(r"socket:\[(\d+)\]", name))}
    return found


def groups_of(processes: set[Process]) -> set[int]:
    """The process groups of those that are still there."""
    found = set()
    for process in processes:
        with suppress(ProcessLookupError):
            found.add(os.getpgid(process.id))
    return found


def listening(inodes: set[str]) -> list[str]:
    """The addresses, as the kernel prints them, on which these sockets listen for TCP."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in inodes:
                found.append(fields[1].rpartition(":")[0])
    return found


def own_sockets() -> set[str]:
    return sockets_of({Process(os.getpid(), 0)})


@pytest.fixture
def handlers() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in SIGNALS}


def test_embedded_ray_is_reached_from_this_machine_alone(
    handlers: dict[int, object],
) -> None:
    before = own_sockets()
    with create_runner("ray") as runner:
        assert isinstance(runner, RayRunner)
        folder = runner.backend.folder
        assert folder is not None
        ours = runner.backend.daemons | holders([folder])
        assert len(ours) >= 3
        addresses = listening(sockets_of(ours) | (own_sockets() - before))
        assert len(addresses) >= 5
        assert set(addresses) <= _LOOPBACK, addresses
        assert {number: signal.getsignal(number) for number in SIGNALS} == handlers
        assert os.getpgrp() not in groups_of(ours)
        folders = list(Path(tempfile.gettempdir()).glob(f"tunefarm-*-{os.getpid():x}-*"))
        assert folders
        assert runner.pending == 0
    assert not any(folder.exists() for folder in folders)
