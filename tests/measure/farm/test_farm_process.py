"""What was started is remembered, and only that is ended."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tunefarm.compiler.errors import MeasureError
from tunefarm.configs.errors import TunefarmError
from tunefarm.measure.farm.farm_process import (
    FarmOptions,
    forget_dead,
    join_farm,
    start_farm,
    stop_farm,
)
from tunefarm.measure.farm.farm_records import (
    FarmRecord,
    authentication,
    boot_id,
    make_token_file,
    records,
    remember,
)
from tunefarm.measure.machine import available_cores
from tunefarm.measure.sandbox.reaper import TAG_VARIABLE, Process, is_alive, run_processes

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that bear the mark of a farm, and one that does not."""
    started = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", "print(flush=True); import time; time.sleep(600)"],
            env={**os.environ, TAG_VARIABLE: tag},
            stdout=subprocess.PIPE,
        )
        for tag in ("mine", "mine", "another")
    ]
    for each in started:
        assert each.stdout is not None and each.stdout.readline()
    yield started
    for each in started:
        each.kill()
        each.wait()
        assert each.stdout is not None
        each.stdout.close()


def record(tmp_path: Path, processes: set[Process], **changes: object) -> FarmRecord:
    folder = tmp_path / "ray"
    folder.mkdir(exist_ok=True)
    token = str(tmp_path / "token")
    made = FarmRecord(
        "mine",
        "head",
        "127.0.0.1:6379",
        token,
        1,
        0,
        str(folder),
        tuple(sorted(processes)),
        boot_id(),
        time.time(),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_only_what_was_started_is_ended(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    ours = run_processes("mine")
    assert {process.id for process in ours} == {sleepers[0].pid, sleepers[1].pid}
    remember(record(tmp_path, set(list(ours)[:1])))  # what started later bears the mark
    (ended,) = stop_farm()
    assert ended.tag == "mine" and not any(map(is_alive, ours))
    assert sleepers[2].poll() is None
    assert records() == [] and not (tmp_path / "ray").exists()
    assert stop_farm() == []


@pytest.mark.parametrize("gone", ["boot", "processes"])
def test_what_a_file_of_another_time_names_is_left_alone(
    tmp_path: Path,
    sleepers: list[subprocess.Popen[bytes]],
    gone: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = run_processes("another")
    made = record(tmp_path, ours)
    if gone == "boot":
        remember(replace(made, boot="an earlier one"))
    else:
        remember(replace(made, processes=tuple(Process(p.id, p.started + 1) for p in ours)))
    (dead,) = forget_dead()
    assert not dead.is_alive and dead.ended_by
    assert sleepers[2].poll() is None and records() == []


def test_a_second_farm_is_refused_and_a_damaged_file_passed_over(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]], state: Path
) -> None:
    remember(record(tmp_path, run_processes("mine")))
    (state / "tunefarm/farm/damaged.json").write_text("[1")
    assert [each.tag for each in records()] == ["mine"]
    with pytest.raises(MeasureError, match=r"runs here already, at 127.0.0.1:6379 \(tune farm"):
        start_farm(FarmOptions(host="127.0.0.1"))


def test_the_token_of_a_farm_of_this_machine_is_known_by_its_address(tmp_path: Path) -> None:
    made = record(tmp_path, set())
    make_token_file(Path(made.token_file))
    assert Path(made.token_file).stat().st_mode & 0o077 == 0
    content = Path(made.token_file).read_text()
    make_token_file(Path(made.token_file))
    assert re.fullmatch("[0-9a-f]{64}", content) and Path(made.token_file).read_text() == content
    remember(made)
    assert authentication(made.address, None)["RAY_AUTH_TOKEN_PATH"] == made.token_file
    assert authentication("127.0.0.1:1", None) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FarmOptions(slots=len(available_cores()) + 1), "slots are not possible: this machine has"),
        (FarmOptions(niceness=20), "niceness is 0 to 19"),
        (FarmOptions(host="192.0.2.77"), "or not this machine's"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    options: FarmOptions, message: str
) -> None:
    with pytest.raises(MeasureError, match=message):
        start_farm(options)
    assert records() == []


def test_a_port_in_use_and_a_farm_that_is_not_there_are_told(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        if port <= 64000:
            with pytest.raises(MeasureError, match=f"port {port} of 127.0.0.1 is in use"):
                start_farm(FarmOptions(host="127.0.0.1", port=port))
    token = tmp_path / "token"
    with pytest.raises(MeasureError, match="there is no token file"):
        join_farm(f"127.0.0.1:{port}", str(token), FarmOptions())
    make_token_file(token)
    with pytest.raises(MeasureError, match="no Ray cluster can be reached"):
        join_farm(f"127.0.0.1:{port}", str(token), FarmOptions())


@pytest.mark.nightly
def test_a_farm_starts_is_joined_shows_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """python -m pytest -m nightly tests/measure/farm/test_farm_process.py"""
    from tunefarm.measure.farm.farm_status import farm_status

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = min(listener.getsockname()[1], 60000)
    head = start_farm(FarmOptions(host="127.0.0.1", port=port))
    try:
        other = tmp_path / "other"
        other.write_text("0" * 64)
        with pytest.raises(MeasureError, match="another token"):
            join_farm(head.address, str(other), FarmOptions(port=port + 2000))
        node = join_farm(head.address, head.token_file, FarmOptions(2, 3, port=port + 2000))
        found = farm_status(head.address)
        assert [(n.is_head, n.slots, n.niceness) for n in found.nodes] == [
            (True, 1, 0),
            (False, 2, 3),
        ]
        assert found.versions
        with pytest.raises(TunefarmError, match=r"the compiler is .* here and 0 there"):
            _join_as_another(head.address, head.token_file, monkeypatch)
        assert head.is_alive and node.is_alive
    finally:
        ended = stop_farm()
    assert [each.role for each in ended] == ["node", "head"]
    assert not any(is_alive(process) for each in ended for process in each.processes)


def _join_as_another(address: str, token_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Join a farm whose head has noted another version of the compiler."""
    from tunefarm.measure.farm.farm_records import environment, of_token_file
    from tunefarm.measure.farm.ray_board import Board
    from tunefarm.measure.farm.ray_start import read_authentication_again
    from tunefarm.measure.sandbox.versions import COMPILER, versions

    with environment(of_token_file(token_file)):
        read_authentication_again()
        Board(address).say_versions({**versions(), COMPILER: "0"})
    join_farm(address, token_file, FarmOptions(port=30000))
