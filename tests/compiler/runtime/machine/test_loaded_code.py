"""Code is linked into the process, or refused in one line where the system does not let it run."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from tests.processes import python
from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.machine.executable_memory import refusal
from tunefarm.compiler.runtime.machine import loaded_code
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import host_target

_SECONDS = 120.0

MDWE = """
import ctypes, errno, os, sys
if ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, since Linux 6.3
    sys.exit(77)
"""
"""What systemd does for MemoryDenyWriteExecute, as far as the kernel has it."""

FILTER = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 10, "aarch64": 226}[__import__("platform").machine()]
steps = [  # struct sock_filter: code, jt, jf, k
    (0x20, 0, 0, 0),  # the number of the system call
    (0x15, 0, 3, number),  # mprotect
    (0x20, 0, 0, 32),  # the low half of its third argument
    (0x45, 0, 1, 4),  # PROT_EXEC
    (0x06, 0, 0, 0x00050000 | 1),  # EPERM
    (0x06, 0, 0, 0x7FFF0000),  # allowed
]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(steps), ctypes.addressof(code)))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):  # no new privileges; a filter
    sys.exit(77)
"""
"""What systemd does for MemoryDenyWriteExecute on older kernels: a filter of system calls."""

_LINK = """
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
try:
    LoadedCode((), ("f",), "define i32 @f() { ret i32 7 }")
except Exception as error:
    sys.stdout.write(f"{type(error).__name__}: {error}")
"""

_TILES = """
from tunefarm.compiler.machine.amx_state import HostMachine
try:
    HostMachine("define void @work(ptr %page) { ret void }")
except RuntimeError as error:
    sys.stdout.write(f"RuntimeError: {error}")
"""


def printed_under(ban: str, program: str) -> str:
    """What a program prints in a process that may not run what it has written to memory."""
    done = python("-c", f"import sys\n{ban}{program}", timeout=_SECONDS)
    if done.returncode == 77:
        pytest.skip("this kernel has no such ban")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("ban", [MDWE, FILTER], ids=["prctl", "seccomp"])
def test_code_that_may_not_run_is_one_error(ban: str) -> None:
    text = printed_under(ban, _LINK)
    assert text.startswith("ArtefactError: this process may not run code that it loads (mprotect: ")
    assert "MemoryDenyWriteExecute=no" in text and "\n" not in text


@pytest.mark.parametrize("ban", [MDWE, FILTER], ids=["prctl", "seccomp"])
def test_a_trial_of_matrix_tiles_is_refused_as_documented(ban: str) -> None:
    assert printed_under(ban, _TILES).startswith("RuntimeError: code may not be run here: ")


def test_without_a_ban_code_links(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal() == ""
    assert LoadedCode((), ("f",), "define i32 @f() { ret i32 7 }").address("f")
    monkeypatch.setattr(loaded_code, "refusal", lambda: "Permission denied")
    with pytest.raises(ArtefactError, match="mprotect: Permission denied"):
        LoadedCode((), ("f",), "define i32 @f() { ret i32 7 }")


_SERVER = """
import numpy, tunefarm
model = tunefarm.load("{path}", threads={threads})
inputs = {{name: numpy.ones(t.shape, t.dtype.numpy) for name, t in model.inputs.items()}}
outputs = [model.run(inputs) for _ in range(3)]
numpy.savez("{out}", **outputs[-1])
sys.stdout.write(f"{{model.threading!r}} {{'llvmlite' in sys.modules}}")
"""


_BUILD = """
import onnx, tunefarm
from tests.end_to_end.tiny_model import tiny_model
onnx.save(tiny_model(), {model!r})
tunefarm.compiler.build({model!r}, precision={precision!r}).save({path!r})
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="code is mapped on x86-64")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("precision", ["default", "bf16"])
@pytest.mark.parametrize("ban", [MDWE, FILTER], ids=["prctl", "seccomp"])
def test_a_server_that_may_not_make_code_runs_a_model(
    tmp_path: Path, ban: str, threads: int, precision: str
) -> None:
    path, model = tmp_path / "tiny.tuned", tmp_path / "tiny.onnx"
    build = _BUILD.format(model=str(model), path=str(path), precision=precision)
    assert printed_under("", build) == ""
    # A trial of the matrix tiles that code in bf16 may use is code that LLVM makes.
    tiles = precision == "bf16" and host_target().matrix_tiles is not None
    for number, kind in enumerate((ban, "")):
        server = _SERVER.format(path=path, threads=threads, out=tmp_path / f"{number}.npz")
        threading, _, has_llvm = printed_under(kind, server).partition(" ")
        assert threading == ("''" if threads == 1 else "'pool'")
        assert has_llvm == str(tiles and not kind)
    for name, array in np.load(tmp_path / "1.npz").items():
        np.testing.assert_array_equal(np.load(tmp_path / "0.npz")[name], array)
