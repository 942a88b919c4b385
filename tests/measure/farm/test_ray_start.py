"""Ray that cannot start: a reason in time, signals heard meanwhile; and whose code workers run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.compiler.test_control_groups import V2_MOUNT, Tree
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm import ray_start
from tunefarm.measure.farm.farm_versions import SOURCES, check_versions, versions
from tunefarm.measure.farm.ray_address import check_loopback
from tunefarm.measure.farm.ray_start import OwnPath, StartedRay
from tunefarm.measure.farm.thread_limit import check_threads
from tunefarm.measure.sandbox.worker_process import WorkerStartError


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """`ray.init` waits for this, and begins nothing."""
    waits = threading.Event()
    monkeypatch.setattr(ray, "init", lambda **_: waits.wait(60))
    yield waits
    waits.set()


def test_a_start_that_hangs_is_given_up_at_the_deadline(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_start, "START_SECONDS", 0.2)
    with pytest.raises(MeasureError, match="no answer within"):
        StartedRay("local", {}, alone=True)


def test_a_signal_ends_a_start_that_hangs(hanging: threading.Event) -> None:
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            StartedRay("local", {}, alone=True)
    finally:
        signal.signal(signal.SIGINT, former)


def test_what_ray_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: Any) -> None:
        raise TimeoutError("ours")

    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(TimeoutError, match="ours"):
        StartedRay("local", {}, alone=True)


def test_the_drivers_folder_is_not_on_the_path_of_workers() -> None:
    job = OwnPath()
    job._py_driver_sys_path.extend(["/home/user/models"])
    assert b"/home/user/models" not in job._serialize()


def test_processes_that_cannot_talk_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(MeasureError, match=r"127\.0\.0\.1: Network is unreachable") as raised:
        check_loopback()
    assert "--runner local" in (raised.value.hint or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network without loopback")
def test_a_network_without_loopback_is_found() -> None:
    program = "from tunefarm.measure.farm.ray_address import check_loopback; check_loopback()"
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "unshare failed" in done.stderr:
        pytest.skip("no namespace can be made here")
    assert "127.0.0.1: Network is unreachable" in done.stderr


@pytest.mark.parametrize(("free", "enough"), [(100, False), (5000, True)])
def test_too_few_threads_for_ray_are_an_error_that_names_the_limit(
    free: int, enough: bool, tmp_path: Path
) -> None:
    tree = Tree(tmp_path, "0::/job", V2_MOUNT.format(root="/"))
    tree.write("job/pids.max", str(free + 7))
    tree.write("job/pids.current", "7")
    if enough:
        check_threads(2, tree.groups)
        return
    with pytest.raises(MeasureError, match=r"100 more can be started here: the limit is pids\.max"):
        check_threads(2, tree.groups)


def test_a_worker_of_other_sources_is_refused_with_its_folder() -> None:
    check_versions(versions())
    others = {**versions(), SOURCES: "0.1.0 with the sources 00000000"}
    with pytest.raises(WorkerStartError, match=r"tunefarm is 0\.1\.0 with the sources 00000000 h"):
        check_versions(others)
