"""Ray that cannot start, or does not answer, is a line in time; nothing is left running."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm import farm_status as status
from tunefarm.measure.farm import ray_launch
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.ray_launch import REFUSED, Wanted, happens_in_time, launch
from tunefarm.measure.farm.runner import RunnerOptions
from tunefarm.measure.sandbox.reaper import TAG_VARIABLE, holders

SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
WAY_OUT = "tune --runner local measures on this machine without Ray"
FARM_TAG = {**os.environ, TAG_VARIABLE: f"test{os.getpid()}"}
PROGRAM = """
import resource, sys
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm import ray_runner
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import RunnerOptions
ray_runner.check_threads = lambda *_: None  # as where no limit is found before
{}
try:
    with create_runner("ray", RunnerOptions(overlap="never")) as runner:
        print("started", runner.backend.folder, flush=True)
        sys.stdin.read()
except MeasureError as error:
    print(error)
"""
DAEMON = """
import subprocess, sys, time
command = "print(flush=True); import time; time.sleep(600)"
daemon = subprocess.Popen([sys.executable, "-S", "-c", command], stdout=subprocess.PIPE)
daemon.stdout.readline()
"""
LIMIT = "resource.setrlimit(resource.RLIMIT_NPROC, ({0}, {0}))"
COMPUTES = "import time\nwhile time.process_time() < 1.2: pass"
WAITS = "input()"


@pytest.fixture
def silent() -> Iterator[tuple[str, threading.Event]]:
    """The address of what begins as a server of gRPC does, and says nothing more; set when Ray,
    which comes after the first look at the address, has connected."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        taken: list[socket.socket] = []
        joined = threading.Event()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    taken.append(connection)
                    connection.sendall(SETTINGS)
                    if len(taken) > 1:
                        joined.set()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", joined
        listener.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()


def child_does(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", program]
    monkeypatch.setattr(ray_launch, "module_command", lambda *_: command)


def head(folder: Path) -> Wanted:
    return Wanted("head", "127.0.0.1:0", str(folder), alone=True)


@pytest.mark.alone
def test_a_start_that_computes_is_waited_for_and_one_that_hangs_is_not(tmp_path: Path) -> None:
    for program, in_time in ((COMPUTES, True), (WAITS, False)):
        command = [sys.executable, "-S", "-c", program]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=FARM_TAG) as process:

            def ends(piece: float, process: subprocess.Popen[bytes] = process) -> bool:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(piece)
                return process.returncode is not None

            assert happens_in_time(ends, 1.0, FARM_TAG[TAG_VARIABLE]) is in_time


def test_a_signal_ends_the_wait_and_what_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    child_does(f"{DAEMON}open({str(ready)!r}, 'w').close()\ntime.sleep(600)", monkeypatch)

    def interrupt() -> None:
        ready.open().close()  # until the child opens it
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        launch(head(tmp_path), FARM_TAG)
    assert not holders([str(tmp_path)])


def test_daemons_that_a_failed_start_leaves_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_does(f"{DAEMON}sys.exit('{REFUSED}the port is in use')", monkeypatch)
    with pytest.raises(MeasureError, match=rf"Ray did not start: the port is in use \({WAY_OUT}"):
        launch(head(tmp_path), FARM_TAG)
    assert not holders([str(tmp_path)])


def test_daemons_that_were_refused_threads_are_told_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "session_1" / "logs" / "raylet.err"
    log.parent.mkdir(parents=True)
    log.write_text("terminate called: Resource temporarily unavailable\n")
    child_does("raise SystemExit(1)", monkeypatch)
    with pytest.raises(MeasureError, match=r"limit of processes is reached \(ulimit -u"):
        launch(head(tmp_path), FARM_TAG)


def test_what_the_child_refuses_for_any_runner_is_said_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_does(f"import sys; print('{REFUSED}no', file=sys.stderr); sys.exit(2)", monkeypatch)
    with pytest.raises(MeasureError, match=r"^no$"):
        launch(head(tmp_path), FARM_TAG)


def test_a_folder_that_takes_no_file_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=rf"No such file or directory.*\({WAY_OUT}\)"):
        launch(head(tmp_path / "gone"), FARM_TAG)


def test_a_status_that_does_not_come_is_refused_in_time(
    silent: tuple[str, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_ANSWER_SECONDS", 1.0)
    with pytest.raises(MeasureError, match=f"no answer within 1 s.*{WAY_OUT}"):
        status.farm_status(silent[0])


def test_what_answers_and_is_no_cluster_is_refused_in_time_and_leaves_nothing(
    silent: tuple[str, threading.Event], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ray_launch, "_START_SECONDS", 1.0)
    with pytest.raises(MeasureError, match=rf"no answer within 1 s \({WAY_OUT}\)"):
        create_runner("ray", RunnerOptions(address=silent[0]))
    assert not holders([str(tmp_path)]) and not list(tmp_path.glob("tunefarm-ray*"))


JOBS: list[tuple[str, ...]] = [
    ("--model", "m.onnx", "--config", "ci", "--runner", "ray", "--address")
]
JOBS += [("farm", "join", "--token-file", "token"), ("farm", "status", "--address")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        *zip(JOBS, (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in zip(JOBS, (signal.SIGINT, signal.SIGTERM, signal.SIGINT), strict=True)
        ),
    ],
)
def test_commands_that_wait_for_ray_hear_signals(
    arguments: tuple[str, ...],
    number: signal.Signals,
    silent: tuple[str, threading.Event],
    tmp_path: Path,
) -> None:
    onnx.save(tiny_model(), tmp_path / "m.onnx")
    (tmp_path / "token").write_text("0" * 64)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "tunefarm.tuner.commands.entry", *arguments, silent[0]],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert silent[1].wait(60)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)  # the end of all that it has started, too
    assert process.returncode in (128 + number, -number)
    assert "Traceback" not in errors


def said_within(*prefix: str, before: str = "") -> str:
    """What a process prints that starts Ray, itself started by `prefix`."""
    done = subprocess.run(
        [*prefix, sys.executable, "-P", "-c", PROGRAM.format(before)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def test_without_a_loopback_interface_a_line_names_the_way_out() -> None:
    unshare = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--user", "--net")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    line = said_within(*unshare)
    assert "127.0.0.1: Network is unreachable" in line and WAY_OUT in line
    assert line.count("\n") == 1


@pytest.mark.nightly
def test_shared_memory_that_takes_no_file_is_a_line_in_time() -> None:
    mount = 'mount -t tmpfs -o ro none /dev/shm && exec "$@"'
    unshare = ("unshare", "--mount", "sh", "-c", mount, "sh")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    line = said_within(*unshare)
    assert "no answer within 18 s" in line and WAY_OUT in line
    assert line.count("\n") == 1


CAPABILITIES = "+dac_override,+dac_read_search"  # the interpreter may be root's alone
ANOTHER_USER: tuple[str, ...] = ("setpriv", "--reuid", "61234", "--clear-groups")
ANOTHER_USER += ("--inh-caps", CAPABILITIES, "--ambient-caps", CAPABILITIES)
NIGHTLY = pytest.mark.nightly


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can be a user that has no other processes",
)
@pytest.mark.parametrize("most", [0, *(pytest.param(n, marks=NIGHTLY) for n in (40, 90, 140))])
def test_a_limit_of_processes_is_named(most: int) -> None:
    line = said_within(*ANOTHER_USER, before=LIMIT.format(most))
    assert "ulimit -u" in line and WAY_OUT in line and line.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("hogs", [0, pytest.param(8, marks=NIGHTLY)], ids=["killed", "busy"])
def test_a_driver_that_is_killed_leaves_nothing(hogs: int) -> None:
    """Among `hogs` processes for each core that compute, it starts as well."""
    with ExitStack() as stack:
        for _ in range(hogs * (os.cpu_count() or 1)):
            hog = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
            stack.callback(hog.wait)
            stack.callback(hog.kill)
        driver = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM.format("")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert driver.stdout is not None
        said, _, folder = driver.stdout.readline().strip().partition(" ")
        driver.kill()
        driver.communicate(timeout=60)  # until the reaper has ended, which has stderr open
    assert said == "started"
    assert not Path(folder).exists() and not holders([folder])
