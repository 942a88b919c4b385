"""Signals at random moments to commands that are at work: they end cleanly and leave nothing.

A command is signalled when its handlers stand, which is before it imports anything; what the
interpreter does until then is its own.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from tests.attack.attack import Attack, Outcome
from tests.end_to_end.tiny_model import tiny_model
from tunefarm.configs.errors import DatabaseError
from tunefarm.db.check import check
from tunefarm.db.store import Store
from tunefarm.measure.sandbox.reaper import Process, is_alive, run_processes

ROOT = Path(__file__).resolve().parents[2]
ENTRY = """
import signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # ignored in a background job
from tunefarm.tuner.commands.entry import main
main()
"""
MARK = "TESTS_ATTACK_SIGNALS"
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
_END_SECONDS = 60.0
_GONE_SECONDS = {True: 30.0, False: 2.0}  # after SIGKILL others clean up
_MAY_STAY = {"m.onnx", "s.db", "s.db-journal", "s.db-wal", "s.db-shm", "out", "a.tuned"}
_OF_ONNXRUNTIME = ".ses"  # which it leaves however it ends
_TUNE = ("--model", "m.onnx", "--db", "s.db", "--config", "quick", "--trials", "5000")
_LIBRARY = ("--emit", "c-header+shared-library")
COMMANDS: dict[str, tuple[float, tuple[str, ...]]] = {
    "ray": (16.0, (*_TUNE, "--runner", "ray")),
    "local": (10.0, (*_TUNE, "--runner", "local")),
    "build": (3.0, ("build", "--model", "m.onnx", "--untuned", "--output", "out", "--no-cache")),
    "emit": (3.0, ("build", "--model", "m.onnx", "--untuned", "--output", "lib", *_LIBRARY)),
    "bench": (5.0, ("bench", "--model", "m.onnx", "--untuned", "--json", "out")),
    "run": (1.5, ("run", "a.tuned", "--repeat", "1000000", "--output", "out")),
    "zoo": (3.0, ("zoo", "resnet18", "--output", "out")),
}  # fmt: skip
"""By name: the seconds within which a signal comes, and the command."""


@dataclass(frozen=True, slots=True)
class Shot:
    """What a command was sent, and when."""

    command: str
    number: signal.Signals
    delay: float  # seconds after its handlers stood
    to_group: bool

    def __str__(self) -> str:
        whom = "the group" if self.to_group else "the process"
        return f"{self.number.name} to {whom} of {self.command} after {self.delay:.3f} s"


class SignalsAttack(Attack):
    """Signals a command once."""

    name = "signals"
    arguments: Sequence[str] = (sys.executable, "-c", ENTRY)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._common = folder / ".common"
        self._common.mkdir()
        onnx.save(tiny_model(), self._common / "m.onnx")
        built = ["build", "--model", "m.onnx", "--untuned", "--output", "a.tuned"]
        command = [sys.executable, "-c", ENTRY, *built]
        environment = self._environment("none", folder)
        subprocess.run(
            command, cwd=self._common, env=environment, check=True, capture_output=True, timeout=300
        )

    def attempt(self, seed: int) -> Outcome:
        rng = random.Random(seed)
        name = rng.choice(["ray", "ray", "local", "local", *COMMANDS])
        most, _ = COMMANDS[name]
        return self.shoot(Shot(name, rng.choice(_ENDS), rng.random() * most, rng.random() < 0.5))

    def shoot(self, shot: Shot) -> Outcome:
        """Start the command, signal it, and look at what is left."""
        work, temporary = self.folder / "work", self.folder / "tmp"
        shutil.copytree(self._common, work)
        temporary.mkdir()
        tag = f"{os.getpid()}-{time.monotonic_ns()}"
        with open(self.folder / "stderr", "w+b") as errors:
            process = subprocess.Popen(
                [*self.arguments, *COMMANDS[shot.command][1]],
                cwd=work,
                env=self._environment(tag, temporary),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            try:
                sent = _signal(process, shot)
                code = process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                return Outcome("hung", broke=True, detail=str(shot))
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait(_END_SECONDS)
            errors.seek(0)
            text = errors.read().decode(errors="replace")
        killed = shot.number is signal.SIGKILL
        noted = run_processes(tag, MARK)
        problems = [*_wrong_end(shot, sent, code, text), *_left_processes(tag, killed, noted)]
        if killed and sent:
            problems += self._wrong_afterwards(work, temporary, resume=shot.command == "local")
        problems += _left_files(process.pid, work, temporary, killed)
        problems += _wrong_database(work / "s.db")
        if problems:
            detail = "\n".join([str(shot), *problems, text[-3000:]])
            return Outcome("broken", broke=True, detail=detail)
        return Outcome(f"{shot.command} {shot.number.name}" if sent else "over before")

    def _wrong_afterwards(self, work: Path, temporary: Path, *, resume: bool) -> list[str]:
        """The next command cleans up after a killed one; a job goes on."""
        if resume:
            command = [*_TUNE[:-1], "8", "--runner", "local"]
        else:
            command = ["build", "--model", "m.onnx", "--untuned", "--output", "a.tuned"]
        again = subprocess.run(
            [*self.arguments, *command],
            cwd=work,
            env=self._environment("again", temporary),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )
        return [f"again: {again.stderr.decode()[-2000:]}"] if again.returncode else []

    def _environment(self, tag: str, temporary: Path) -> dict[str, str]:
        caches = str(self._common / "cache")
        changed = {MARK: tag, "TMPDIR": str(temporary), "XDG_CACHE_HOME": caches}
        return {**os.environ, **changed}


def _signal(process: subprocess.Popen[bytes], shot: Shot) -> bool:
    """Send the signal at its moment; False if the process had ended by then."""
    deadline = time.monotonic() + _END_SECONDS
    while not _catches(process.pid) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)  # polls what another process does
    try:
        process.wait(shot.delay)
        return False
    except subprocess.TimeoutExpired:
        pass
    if shot.to_group:
        os.killpg(process.pid, shot.number)
    else:
        process.send_signal(shot.number)
    return True


def _catches(process: int) -> bool:
    """Whether a process has a handler for SIGHUP, the last that is set."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) & 1 << (signal.SIGHUP - 1))


def _wrong_end(shot: Shot, sent: bool, code: int, text: str) -> list[str]:
    problems = ["traceback"] if "Traceback" in text or "Exception ignored" in text else []
    if not sent or shot.number is signal.SIGKILL:
        expected = -signal.SIGKILL if sent else 0
        return problems + ([f"exit code {code}"] if code != expected else [])
    lines = [line for line in text.splitlines() if "interrupted" in line]
    if code == 0 and not lines:
        return problems  # it was done
    if code != 128 + shot.number:
        problems.append(f"exit code {code}")
    if len(lines) != 1:
        problems.append(f"{len(lines)} lines say that it was interrupted")
    return problems


def _left_processes(tag: str, killed: bool, noted: set[Process]) -> list[str]:
    deadline = time.monotonic() + _GONE_SECONDS[killed]
    while left := {one for one in noted | run_processes(tag, MARK) if is_alive(one)}:
        if time.monotonic() > deadline:
            return [f"process {_command_of(one)}" for one in left]
        time.sleep(0.02)  # polls what other processes do
    return []


def _command_of(process: Process) -> str:
    try:
        return Path(f"/proc/{process.id}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return str(process.id)


def _left_files(process: int, work: Path, temporary: Path, killed: bool) -> list[str]:
    roots = (Path("/tmp"), Path("/dev/shm"))
    ours = [path for root in roots for path in root.glob(f"tunefarm-*-{process:x}-*")]
    left = [*(path for path in temporary.iterdir() if path.name != _OF_ONNXRUNTIME), *ours]
    if not killed:
        left += [path for path in work.iterdir() if path.name not in {*_MAY_STAY, "cache", "lib"}]
        left += (work / "lib").glob(".*")
    return [f"file {path}" for path in left]


def _wrong_database(path: Path) -> list[str]:
    if not path.exists():
        return []
    try:
        with Store.open(path) as store:
            return [f"database: {problem}" for problem in check(store)]
    except DatabaseError as error:
        return [f"database: {error}"]
