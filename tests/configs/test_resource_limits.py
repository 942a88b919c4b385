"""What fails for a limit of the shell names it; the smaller of its limit and ours counts."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tunefarm.configs.errors import DatabaseError, TunefarmError
from tunefarm.configs.resource_limits import FILE_SIZE, ResourceLimit, limit_behind

_SECONDS = 120.0

_RAISED = """
import os, resource, sqlite3, sys, threading
from tunefarm.configs.errors import TunefarmError
def fail():
    {fail}
resource.setrlimit(resource.RLIMIT_{name}, ({value}, {value}))
try:
    try:
        fail()
    except Exception as error:
        raise TunefarmError("this failed") from error
except TunefarmError as error:
    sys.stdout.write(str(error))
"""


def printed(program: str, *arguments: str) -> str:
    """What a program prints, in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "value", "fail", "expected"),
    [
        ("FSIZE", 4096, "open(sys.argv[1], 'wb', 0).write(bytes(8192)) and 1 / 0", "NOTHING"),
        (
            "FSIZE",
            4096,
            "f = open(sys.argv[1], 'wb', 0); f.write(bytes(4096)); f.write(b'1')",
            "this failed (ulimit -f is 4 KiB: raise it, ulimit -f unlimited, or LimitFSIZE= of a "
            "service)",
        ),
        (
            "FSIZE",
            4096,
            "sqlite3.connect(sys.argv[1]).execute('CREATE TABLE t (x)').connection.execute("
            "'CREATE TABLE u (x)')",
            "this failed (ulimit -f is 4 KiB: raise",
        ),
        ("AS", 1 << 30, "bytes(1 << 31)", "this failed (ulimit -v is 1024 MiB: raise"),
        ("DATA", 1 << 29, "bytes(1 << 31)", "this failed (ulimit -d is 512 MiB: raise"),
        (
            "NOFILE",
            20,
            "files = [open(os.devnull) for _ in range(30)]",
            "this failed (ulimit -n is 20: raise it, ulimit -n unlimited, or LimitNOFILE=",
        ),
    ],
    ids=["part", "file", "sqlite", "address space", "data", "open files"],
)
def test_an_error_names_the_limit_that_it_comes_from(
    name: str, value: int, fail: str, expected: str, tmp_path: Path
) -> None:
    text = printed(_RAISED.format(name=name, value=value, fail=fail), str(tmp_path / "file"))
    if expected == "NOTHING":  # a write that ends at the limit is short, and no error
        assert text == "this failed"
    else:
        assert text.startswith(expected)


_PROCESSES = """
import os, resource, subprocess, sys
from tunefarm.configs.resource_limits import limit_behind
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65533, 65533, 65533); os.setresuid(65533, 65533, 65533)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    os.fork()
except OSError as error:
    sys.stdout.write(limit_behind(error))
"""


def test_a_process_that_cannot_be_started_names_the_limit_of_processes() -> None:
    assert printed(_PROCESSES).startswith("ulimit -u is 1: raise it")


def test_without_a_limit_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResourceLimit, "value", None)
    errors: list[BaseException] = [
        MemoryError(),
        *(OSError(number, "") for number in (errno.EFBIG, errno.EMFILE, errno.ENOMEM)),
    ]
    assert [limit_behind(error) for error in errors] == [""] * len(errors)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "no such file"),
        BlockingIOError(errno.EAGAIN, "a file is locked"),
        RuntimeError("something else"),
        ValueError("bad"),
    ],
)
def test_what_has_another_cause_names_no_limit(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResourceLimit, "value", 1 << 40)
    assert limit_behind(error) == ""


def test_a_limit_is_named_once_and_behind_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResourceLimit, "value", 1 << 20)
    limit = FILE_SIZE.text(1 << 20)
    cause = OSError(errno.EFBIG, "File too large")
    for message, hint, expected in (
        ("failed", "try again", f"failed (try again; {limit})"),
        ("failed", "", f"failed ({limit})"),
        (f"failed: {limit}", "", f"failed: {limit}"),
        ("failed", limit, f"failed ({limit})"),
    ):
        error: TunefarmError = DatabaseError(message, hint=hint)
        error.__cause__ = cause
        assert str(error) == expected


_LOWERED = """
import resource, sys
from tunefarm.configs.resource_limits import FILE_SIZE
soft, hard, ours = (int(argument) for argument in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
FILE_SIZE.lower(ours)
print(*resource.getrlimit(resource.RLIMIT_FSIZE), FILE_SIZE.value)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "ours", "allowed", "of_the_shell"),
    [
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 9000, 9000, None),
        (5000, 5000, 9000, 5000, 5000),
        (5000, resource.RLIM_INFINITY, 9000, 5000, 5000),  # ulimit -S
        (9999, 9999, 9000, 9000, None),
    ],
)
def test_the_smaller_limit_counts(
    soft: int, hard: int, ours: int, allowed: int, of_the_shell: int | None
) -> None:
    text = printed(_LOWERED, str(soft), str(hard), str(ours))
    assert text.split() == [str(allowed), str(allowed), str(of_the_shell)]


_ROOM = """
import resource, sys
value = int(sys.argv[2]) << 20
resource.setrlimit(getattr(resource, "RLIMIT_" + sys.argv[1]), (value, value))
import tunefarm
try:
    tunefarm.load(sys.argv[3])
except tunefarm.configs.errors.TunefarmError as error:
    sys.stdout.write(str(error))
"""


@pytest.mark.parametrize(
    ("name", "letter", "mib"), [("AS", "v", 100), ("AS", "v", 250), ("DATA", "d", 64)]
)
def test_a_program_whose_libraries_have_no_room_gets_one_error(
    name: str, letter: str, mib: int, tmp_path: Path
) -> None:
    text = printed(_ROOM, name, str(mib), str(tmp_path / "model.tuned"))
    assert text.startswith("there is too little memory for NumPy and LLVM, ")
    assert f"ulimit -{letter} is {mib} MiB: raise it" in text and "\n" not in text


def test_cpu_time_that_is_used_up_is_signalled_before_the_kernel_kills() -> None:
    program = """
import resource, signal
from tunefarm.configs.resource_limits import CPU_TIME
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
CPU_TIME.warn_before(5)
print(*resource.getrlimit(resource.RLIMIT_CPU), CPU_TIME.value)
"""
    assert printed(program).split() == ["55", "60", "60"]
