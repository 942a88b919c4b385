"""Commands under limits of the shell that are below ours: they work, or name the limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor

_SECONDS = 300.0
_UNDER = """
import json, os, resource, sys
for name, value in json.loads(sys.argv[1]).items():
    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
os.execv(sys.executable, [sys.executable, "-m", "tunefarm.tuner.commands.entry", *sys.argv[2:]])
"""


def tune_under(
    limits: Mapping[str, int], folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run `tune` with these soft and hard limits, in `folder` and with a cache of its own."""
    return subprocess.run(
        [sys.executable, "-c", _UNDER, json.dumps(limits), *arguments],
        cwd=folder,
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",  # under a limit of a file it would be cut off
        },
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What it ended with, in one line and without a traceback."""
    assert done.returncode not in (0, -9, 137) and "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_build_works_under_hard_limits_below_ours(model: Path, tmp_path: Path) -> None:
    arguments = ["build", "--model", str(model), "--untuned", "--output", "tiny.tuned"]
    limits = {"AS": 2 << 30, "DATA": 1 << 30, "FSIZE": 1 << 20, "CPU": 120, "NOFILE": 64}
    done = tune_under(limits, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tiny.tuned").exists()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("AS", 200 << 20, "error: there is too little memory for NumPy and LLVM, "),
        ("FSIZE", 1 << 10, "reading {model} failed: OSError: [Errno 27] File too large ("),
        ("FSIZE", 8 << 10, "error: cannot write tiny.tuned: File too large ("),
        ("CPU", 2, "interrupted: the CPU time is used up ("),
        ("NOFILE", 9, "Too many open files"),
    ],
    ids=["memory", "constants", "artifact", "CPU time", "open files"],
)
def test_a_build_that_a_limit_stops_names_it(
    name: str, value: int, expected: str, model: Path, tmp_path: Path
) -> None:
    if name == "CPU":  # many kernels: more than the limit on any CPU
        products = [node("MatMul", f"x w{number}", f"y{number}") for number in range(99)]
        weights = {f"w{n}": np.ones((64, 9 + n), np.float32) for n in range(99)}
        names = [product.output[0] for product in products]
        onnx.save(model_of(products, [tensor("x", (3, 64))], names, weights), model)
    arguments = ["build", "--model", str(model), "--untuned", "--output", "tiny.tuned"]
    line = last_line(tune_under({name: value}, tmp_path, *arguments))
    letters = {"AS": "v", "FSIZE": "f", "CPU": "t", "NOFILE": "n"}
    assert expected.format(model=model) in line
    assert f"ulimit -{letters[name]} is " in line
    assert not (tmp_path / "tiny.tuned").exists()


def test_a_job_whose_database_may_not_grow_names_the_limit_and_does_not_wait(
    model: Path, tmp_path: Path
) -> None:
    arguments = ["--model", str(model), "--db", "t.db", "--trials", "1", "--runner", "local"]
    line = last_line(tune_under({"FSIZE": 64 << 10}, tmp_path, *arguments))
    assert line.startswith("error: t.db: ") and "(ulimit -f is 64 KiB: raise it" in line
