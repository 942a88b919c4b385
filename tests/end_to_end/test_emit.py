"""`tune build --emit`: every form, what is typed next, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.graph.serialize import graph_from_structure
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.target import host_target
from tunefarm.tuner.building.request import FORMS
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

LIBRARY = "c-header+shared-library"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the model tiny-1.onnx."""
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_model(), tmp_path / "tiny-1.onnx")
    return tmp_path


def build(form: str, output: str, *options: str) -> int:
    arguments = ["build", "--model", "tiny-1.onnx", "--untuned", "--emit", form]
    return run_command(app, [*arguments, "--output", output, *options])


def shell(folder: Path, command: str) -> str:
    """What a command line prints; the test fails with its errors."""
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr[:2000]}"
    return done.stdout


def next_command(printed: str) -> str:
    (command,) = re.findall(r"^next: (.*)$", printed, re.MULTILINE)
    return str(command)


def test_a_c_library_runs_as_onnxruntime_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(LIBRARY, "made/here") == 0
    files = sorted(path.name for path in (folder / "made/here").iterdir())
    assert files == ["libtiny_1.so", "tiny_1.h", "tiny_1_example.c"]
    assert "y [1, 10]: " in shell(folder, next_command(capsys.readouterr().out))
    x = np.random.default_rng(3).standard_normal((1, 3, 12, 12)).astype(np.float32)
    (folder / "x.bin").write_bytes(x.tobytes())
    shell(folder, "made/here/tiny_1_example x.bin y.bin")
    (expected,) = exact_session("tiny-1.onnx").run(None, {"x": x})
    ours = np.fromfile(folder / "y.bin", np.float32).reshape(1, 10)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_an_object_is_linked_as_the_next_line_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("object", "net.o") == 0
    assert (folder / "net.h").exists()
    (folder / "your_program.c").write_text(
        '#include "net.h"\nint main(void) { return tiny_1_run(0, 0) != TINY_1_ERROR_NULL; }\n'
    )
    command = next_command(capsys.readouterr().out)
    assert command.startswith("cc ") and "net.o" in command
    shell(folder, f"{command} && ./your_program")


def test_assembly_is_assembled_as_the_next_line_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("asm", "tiny.s") == 0
    shell(folder, next_command(capsys.readouterr().out))
    assert " T tunefarm_run" in shell(folder, "nm tiny.o")


def test_llvm_is_one_module(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build("llvm", "tiny.ll") == 0
    text = (folder / "tiny.ll").read_text()
    assert "define void @tunefarm_run(" in text and "define void @kernel_" in text
    assert next_command(capsys.readouterr().out).startswith("llc -O2 ")
    assert object_code(text, host_target()).startswith(b"\x7fELF")


def test_the_graph_is_json_without_the_weights(folder: Path) -> None:
    assert build("graph", "tiny.json") == 0
    value = json.loads((folder / "tiny.json").read_text())
    graph = graph_from_structure(value, {})
    assert graph.inputs == ("x",) and graph.outputs == ("y",)
    assert any(node.operator == "conv" for node in graph.nodes)
    assert all(set(constant) == {"sha256"} for constant in value["constants"].values())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_reports_every_kernel(
    form: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(form, "out", "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["emit"] == form
    assert all((folder / file).is_file() for file in report["files"])
    assert {kernel["schedule_source"] for kernel in report["kernels"]} == {"default"}


@pytest.mark.parametrize("form", FORMS)
def test_a_required_share_that_is_not_tuned_emits_nothing(
    form: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(form, "out", "--require-tuned", "0.5") == 1
    assert "50.0 %" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["tiny-1.onnx"]


@pytest.mark.parametrize(
    ("form", "output", "expected"),
    [
        ("objct", "out.o", "--emit objct: there is no such form (did you mean object?)"),
        ("exe", "out", "there is no such form (known: artifact, c, object, llvm, asm, graph)"),
        (LIBRARY, "tiny-1.onnx", "a folder is wanted"),
        (LIBRARY, "", "not the name of a folder"),
        ("object", "net.h", "where the header goes"),
        ("object", "tiny-1.onnx", "is an input"),
        ("llvm", ".", "it is a folder"),
        ("asm", "nowhere/tiny.s", "no folder nowhere"),
    ],
)
def test_what_cannot_be_emitted_is_refused_in_one_line(
    form: str, output: str, expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "tiny-1.onnx").read_bytes()
    assert build(form, output) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1
    assert expected in printed.err
    assert [path.name for path in folder.iterdir()] == ["tiny-1.onnx"]
    assert (folder / "tiny-1.onnx").read_bytes() == before


def test_without_a_compiler_nothing_is_built(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    assert build(LIBRARY, "out") == 1
    printed = capsys.readouterr().err
    assert "there is no cc on PATH" in printed and "install a C compiler" in printed
    assert not (folder / "out").exists()
