"""Starts and ends what a machine does for a farm: Ray's processes, told what measuring needs.

Workers keep the niceness that was asked for (Ray would give them 15), whoever reaches a port needs
the token, there is no dashboard and no Ray client, the object store is small, and nothing is
reported to Ray's makers.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tunefarm.compiler.errors import MeasureError
from tunefarm.configs.private_folder import make_private
from tunefarm.configs.temporary_folders import temporary_root
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.farm.farm_records import (
    FarmRecord,
    Role,
    boot_id,
    forget,
    make_token_file,
    of_token_file,
    records,
    remember,
    token_path,
)
from tunefarm.measure.farm.ray_address import check_address
from tunefarm.measure.farm.ray_launch import Wanted, launch
from tunefarm.measure.sandbox.reaper import TAG_VARIABLE, Process, end_run, is_alive, run_processes

_DAEMONS = ("raylet", "gcs_server")


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


DEFAULT_PORT = 6379
_WORKER_PORTS = (21, 1020)  # the first and the last one, behind the port
SLOTS_LABEL = "tunefarm-slots"
NICENESS_LABEL = "tunefarm-niceness"
_OBJECT_STORE_BYTES = 128 << 20
_FOLDER_PREFIX = "tunefarm-ray."
_DRAWN_CHARACTERS = 8  # that mkdtemp adds
_MOST_FOLDER_CHARACTERS = 40  # a socket's name has 107 at most; Ray takes up to 66 of them
_RAYLET_SECONDS = 10.0  # for Ray's node to say that it leaves
_OTHERS_SECONDS = 4.0
_POLL_SECONDS = 0.1
_LEAST_NICE, _MOST_NICE = 0, 19


@dataclass(frozen=True, slots=True)
class FarmOptions:
    """How a machine takes part in a farm.

    `slots` are the cores that it keeps for timed runs, `niceness` what its workers run at, `host`
    the address at which other machines reach it (None: that of its way out), `port` the first of
    three that it listens on; those of its workers are behind them.
    """

    slots: int = 1
    niceness: int = 0
    host: str | None = None
    port: int = DEFAULT_PORT


def start_farm(options: FarmOptions, token_file: str | None = None) -> FarmRecord:
    """Start the head of a farm here, which is a node of it too. Raises MeasureError."""
    _check(options)
    _refuse_second()
    host = options.host or _own_address()
    if not _is_free(host, options.port):
        raise MeasureError(
            f"port {options.port} of {host} is in use, or not this machine's",
            hint="--port takes another one, --host another address",
        )
    path = Path(token_file) if token_file is not None else token_path()
    if token_file is None:
        try:
            make_private(path.parent)
            make_token_file(path)
        except OSError as error:
            raise MeasureError(
                f"the farm's token cannot be kept: {error.filename}: {error.strerror}",
                hint="XDG_STATE_HOME names a folder for such files",
            ) from error
    address = f"{host}:{options.port}"
    arguments = ["--head", "--port", str(options.port), "--include-dashboard", "false"]
    arguments += ["--disable-usage-stats", "--no-monitor"]
    return _start("head", address, host, path, options, arguments)


def join_farm(address: str, token_file: str, options: FarmOptions) -> FarmRecord:
    """Have this machine work for the farm at an address.

    Raises MeasureError, too when its compiler, llvmlite, NumPy, Ray or Python is not the farm's.
    """
    _check(options)
    of_token_file(token_file)
    check_address(address)
    host = options.host or _own_address(address.rpartition(":")[0])
    arguments = ["--address", address]
    return _start("node", address, host, Path(token_file), options, arguments)


def stop_farm() -> list[FarmRecord]:
    """End what was started here and is still there, nodes first; what that was.

    What a record names that does not run any more is forgotten.
    """
    ended = []
    for record in sorted(records(), key=lambda record: record.role, reverse=True):
        if record.is_alive:
            _end(record.tag, record.processes)
            ended.append(record)
        shutil.rmtree(record.folder, ignore_errors=True)
        forget(record)
    return ended


def forget_dead() -> list[FarmRecord]:
    """Forget what does not run any more; what that was."""
    dead = [record for record in records() if not record.is_alive]
    for record in dead:
        shutil.rmtree(record.folder, ignore_errors=True)
        forget(record)
    return dead


def is_loopback(host: str) -> bool:
    """Whether an address is for this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _start(
    role: Role,
    address: str,
    host: str,
    token_file: Path,
    options: FarmOptions,
    arguments: Iterable[str],
) -> FarmRecord:
    tag = uuid.uuid4().hex
    folder = _make_folder()
    ports = [options.port + 1, options.port + 2]
    manager, objects = ports if all(_is_free(host, port) for port in ports) else (0, 0)
    cores = usable_cpus().cores
    ray = [
        *arguments,
        *("--node-ip-address", host, "--num-cpus", str(len(cores)), "--temp-dir", folder),
        *("--node-manager-port", str(manager), "--object-manager-port", str(objects)),
        *("--min-worker-port", str(options.port + _WORKER_PORTS[0])),
        *("--max-worker-port", str(options.port + _WORKER_PORTS[1])),
        *("--object-store-memory", str(_OBJECT_STORE_BYTES), "--include-log-monitor", "false"),
        *("--labels", f"{SLOTS_LABEL}={options.slots},{NICENESS_LABEL}={options.niceness}"),
    ]
    wanted = Wanted(role, address, folder, is_loopback(host), tuple(ray))
    environment = {
        **os.environ,  # noqa: TID251
        **of_token_file(str(token_file)),
        "RAY_worker_niceness": str(options.niceness),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a warning about devices
        TAG_VARIABLE: tag,
    }
    try:
        launch(wanted, environment)
        record = FarmRecord(
            tag,
            role,
            address,
            str(token_file.resolve()),
            options.slots,
            options.niceness,
            folder,
            tuple(sorted(run_processes(tag))),
            boot_id(),
            time.time(),
        )
        remember(record)
    except BaseException:  # an interrupt as well: nothing may be left running
        _end(tag, run_processes(tag))
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return record


def _make_folder() -> str:
    """A folder for this user alone. Sockets are below it, in a folder that Ray names."""
    below = len(_FOLDER_PREFIX) + _DRAWN_CHARACTERS
    try:
        root = temporary_root(_MOST_FOLDER_CHARACTERS, below)
        return tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=root)
    except OSError as error:
        raise MeasureError(
            f"there is no folder for Ray's files: {error.filename}: {error.strerror}",
            hint="TMPDIR names the folder for temporary files",
        ) from error


def _end(tag: str, noted: Iterable[Process]) -> None:
    """End the processes of a tag: Ray's node first, which then leaves without being missed."""
    ours = {*noted, *run_processes(tag)}
    raylets = [process for process in ours if program_of(process) == "raylet"]
    _terminate(raylets, _RAYLET_SECONDS)
    _terminate(ours, _OTHERS_SECONDS)
    end_run(tag, ours)


def _terminate(processes: Collection[Process], seconds: float) -> None:
    for process in filter(is_alive, processes):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.id, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _check(options: FarmOptions) -> None:
    cores = len(usable_cpus().timing)
    if not 1 <= options.slots <= cores:
        raise MeasureError(
            f"{options.slots} slots are not possible: this machine has {cores} cores that can time"
        )
    if not _LEAST_NICE <= options.niceness <= _MOST_NICE:
        raise MeasureError(f"niceness is {_LEAST_NICE} to {_MOST_NICE}, not {options.niceness}")


def _refuse_second() -> None:
    running = [record for record in records() if record.role == "head" and record.is_alive]
    if running:
        raise MeasureError(
            f"a farm runs here already, at {running[0].address}", hint="tune farm stop ends it"
        )


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError, OverflowError), socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        return True
    return False


def _own_address(towards: str = "192.0.2.1") -> str:
    """The address of this machine on the way to another; nothing is sent."""
    if is_loopback(towards):
        return "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((towards, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
