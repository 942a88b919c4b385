"""What a worker may use: the smaller of our limits and the shell's, and what is said of either."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.processes import python
from tunefarm.configs.resource_limits import ResourceLimit
from tunefarm.measure.measurement import Status
from tunefarm.measure.sandbox.child import _in_a_line
from tunefarm.measure.sandbox.worker_process import classify_exit
from tunefarm.measure.sandbox.worker_settings import WorkerSettings

_SECONDS = 120.0
_XCPU, _XFSZ = -24, -25

_PROGRAM = """
import resource, sys
name, value, rest = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if value:
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
exec(rest)
"""


def printed(name: str, value: int, program: str) -> str:
    """What a program prints under a limit (0: none) that it is started with."""
    done = python("-c", _PROGRAM, name, str(value), program, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_LIMIT = """
import os
from tunefarm.measure.sandbox.limits import limit, limit_cpu
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
cores = tuple(os.sched_getaffinity(0))
limit(WorkerSettings(cores, 1, {}, "", memory_bytes=3 << 30, file_bytes=1 << 30))
limit_cpu(20.0)
print(*(resource.getrlimit(getattr(resource, "RLIMIT_" + n))[0] for n in ("AS", "FSIZE", "CPU")))
"""


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("AS", 0, (3 << 30, 1 << 30, 21)),
        ("AS", 2 << 30, (2 << 30, 1 << 30, 21)),
        ("AS", 9 << 30, (3 << 30, 1 << 30, 21)),
        ("FSIZE", 1 << 20, (3 << 30, 1 << 20, 21)),
        ("CPU", 12, (3 << 30, 1 << 30, 11)),  # a second before the kernel kills
    ],
)
def test_a_worker_starts_under_a_lower_limit_and_keeps_it(
    name: str, value: int, expected: tuple[int, int, int]
) -> None:
    memory, file, cpu = map(int, printed(name, value, _LIMIT).split())
    assert (memory, file) == expected[:2]
    assert expected[2] <= cpu <= expected[2] + 5  # counted from what the start has used


_SPENT = """
from tunefarm.measure.sandbox import limits
used = 0.0
limits._cpu_seconds = lambda: used
left = []
for used in (0.0, 28.0, 40.0, 58.0):
    left.append(limits.is_spent(31.0))
print(*left)
"""


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "False False False False"), (60, "False False True True"), (80, "False False False True")],
)
def test_a_worker_is_replaced_before_its_cpu_time_is_used_up(seconds: int, expected: str) -> None:
    assert printed("CPU", seconds, _SPENT) == expected


def test_a_worker_under_a_limit_of_cpu_time_asks_to_be_replaced() -> None:
    program = """
import os
from tunefarm.measure.sandbox import child, limits
from tunefarm.measure.sandbox.messages import Message
class Role:
    def answer(self, message): return Message({"status": "ok"})
limits._cpu_seconds = lambda: 20.0
print(child._answer(Role(), Message({"cpu_seconds": 31.0}), None).fields)
"""
    assert printed("CPU", 30, program) == "{'status': 'ok', 'retire': True}"
    assert printed("CPU", 0, program) == "{'status': 'ok'}"


def test_what_a_limit_of_the_shell_ends_is_no_candidates_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ResourceLimit, "value", 20)
    status, text = classify_exit(_XCPU, False, 31.0)
    assert status is Status.INFRASTRUCTURE and "ulimit -t is 20 s: raise it" in text
    status, text = classify_exit(_XFSZ, False, 31.0)
    assert status is Status.INFRASTRUCTURE and "ulimit -f is " in text
    monkeypatch.setattr(ResourceLimit, "value", None)
    assert classify_exit(_XCPU, False, 31.0)[0] is Status.RUN_TIMEOUT
    assert classify_exit(_XFSZ, False, 31.0) == (Status.CRASHED, "killed by SIGXFSZ")
    monkeypatch.setattr(ResourceLimit, "value", 3600)  # ours is far below it
    assert classify_exit(_XCPU, False, 31.0)[0] is Status.RUN_TIMEOUT


_IMPORT = """
from tunefarm.measure.sandbox.import_model import import_model
try:
    import_model("no-such.onnx")
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_a_worker_without_room_for_its_libraries_says_so() -> None:
    text = printed("AS", 250 << 20, _IMPORT)
    assert text.startswith("ImportModelError: cannot read no-such.onnx: a import worker did not")
    assert "there is too little memory for NumPy and LLVM" in text
    assert "ulimit -v is 250 MiB: raise it" in text and "\n" not in text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_folder_for_temporary_files_is_named(number: int, tmp_path: Path) -> None:
    settings = WorkerSettings((0,), 1, {}, str(tmp_path / "scratch"))
    text = _in_a_line(OSError(number, "No space left on device"), settings)
    assert f"there is no room in {tmp_path}; name a folder with room in TMPDIR" in text
    assert "TMPDIR" not in _in_a_line(OSError(errno.EIO, "bad disk"), settings)
