"""`tune reduce`: its checks, what it refuses, crashes, and dynamic shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

MODEL = """
<ir_version: 8, opset_import: ["" : 17, "nobody" : 1]>
g (float[batch, 4] x) => (float[batch, 4] y)
{ a = Exp (x) b = Relu (a) c = OPERATOR (b) d = Tanh (c) y = Neg (d) }
"""

CHECKS = """
import os
import onnx

def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]

def has_sigmoid(path, inputs):
    return "Sigmoid" in operators(path)

def is_dynamic(path, inputs):
    names = [d.dim_param for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
    return "Sigmoid" in operators(path) and names[0] == "batch"

def crashes(path, inputs):
    if "Sigmoid" in operators(path):
        os.abort()
    return True

def hangs(path, inputs):
    while "Sigmoid" in operators(path):
        pass
    return True

def raises(path, inputs):
    raise ValueError("no idea")

"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL.replace("OPERATOR", "Sigmoid")), "m.onnx")
    Path("checks.py").write_text(CHECKS)
    return tmp_path


def reduce(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """The exit code, and the result or else the error."""
    code = run_command(app, ["reduce", *arguments, "--json", "-"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if code == 0 else said.err.strip()


def operators(path: str) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize(
    ("check", "options"),
    [
        ("checks.py:has_sigmoid", []),
        ("checks.py:crashes", []),
        ("checks.py:is_dynamic", ["--shape", "batch=1..8"]),
        ("grep -q Sigmoid", []),
    ],
)
def test_the_node_that_fails_is_left(
    folder: Path, capsys: pytest.CaptureFixture[str], check: str, options: list[str]
) -> None:
    code, result = reduce(capsys, "m.onnx", "--check", check, *options)
    assert (code, operators("m_reduced.onnx")) == (0, ["Sigmoid"]), result
    assert result["nodes_before"] == 5
    with np.load("m_reduced.npz") as inputs:
        assert inputs["b"].shape == ((4 if options else 1), 4)


@pytest.mark.nightly
def test_a_check_that_hangs_is_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = reduce(capsys, "m.onnx", "--check", "checks.py:hangs", "--seconds", "3")
    assert (code, operators("m_reduced.onnx")) == (0, ["Sigmoid"])


def test_a_build_that_fails_is_reduced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(onnx.parser.parse_model(MODEL.replace("OPERATOR", "nobody.knows")), "m.onnx")
    code, result = reduce(capsys, "m.onnx", "--check", "build", "-o", "small.onnx")
    assert (code, operators("small.onnx")) == (0, ["knows"]), result
    assert "nobody" in result["outcome"]
    code, error = reduce(capsys, "m.onnx", "--check", "reference")
    assert code == 1 and "cannot be checked" in error and "--check build" in error


def test_the_printed_command_fails_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.ones((3, 4), np.float32))
    arguments = ["m.onnx", "--check", "checks.py:has_sigmoid", "--input", "x=x.npy"]
    assert run_command(app, ["reduce", *arguments]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    printed = "tune reduce m_reduced.onnx --check checks.py:has_sigmoid --input m_reduced.npz"
    assert line == f"to reproduce: {printed}"
    code, result = reduce(capsys, *printed.split()[2:], "-o", "again.onnx")
    assert (code, result["nodes_before"]) == (0, 1)
    assert Path("again.onnx").read_bytes() == Path("m_reduced.onnx").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--check", "onnxruntime"], 1, "m.onnx does not fail: the model passes the check"),
        (["--check", "stages"], 1, "m.onnx does not fail: the model passes the check"),
        (["--check", "checks.py:raises"], 1, "cannot be checked: ValueError: no idea"),
        (["--check", "checks.py:none"], 1, "cannot be checked: checks.py has no function 'none'"),
        (["--check", "none.py:f"], 2, "there is no file none.py"),
        (["--check", "onnxruntim"], 2, "give onnxruntime, reference, build, stages, FILE.py:FUN"),
        (["--check", "build", "--input", "z=x.npy"], 1, "the model has no input 'z'"),
        (["--check", "build", "--precision", "int8"], 1, "unknown precision 'int8'"),
        (["--check", "build", "-o", "m.onnx"], 1, "m.onnx is an input, it would be overwritten"),
    ],
)
def test_what_cannot_be_reduced_is_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    error: str,
) -> None:
    np.save("x.npy", np.ones((3, 4), np.float32))
    found, said = reduce(capsys, "m.onnx", *arguments)
    assert found == code and error in said
    assert len(said.splitlines()) == 1
    assert not Path("m_reduced.onnx").exists()
