"""Ray that cannot start: a reason in time, signals heard meanwhile; and whose code workers run."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.compiler.machine.test_control_groups import V2_MOUNT, Tree
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.ray_address import check_loopback
from tunefarm.measure.farm.ray_launch import check_threads
from tunefarm.measure.farm.ray_runner import check_versions
from tunefarm.measure.farm.ray_start import NoFolders
from tunefarm.measure.sandbox.versions import TUNEFARM, versions
from tunefarm.measure.sandbox.worker_process import WorkerStartError


def test_the_drivers_folder_is_not_on_the_path_of_workers() -> None:
    job = NoFolders()
    job._py_driver_sys_path.extend(["/home/user/models"])
    serialized: Any = job._serialize()
    assert b"/home/user/models" not in serialized


def test_processes_that_cannot_talk_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(MeasureError, match=r"127\.0\.0\.1: Network is unreachable") as raised:
        check_loopback()
    assert "--runner local" in (raised.value.hint or "")


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
    others = {**versions(), TUNEFARM: "0.1.0 (files 00000000)"}
    with pytest.raises(WorkerStartError, match=r"tunefarm is 0\.1\.0 \(files 00000000\) h"):
        check_versions(others)
