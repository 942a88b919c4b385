"""Functions by name from the command line: built, run, refused where they are missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.runtime.c_models import cc, run
from tests.processes import python
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

MODULE = """
import tunefarm

def first(operands, attributes):
    return [operands[0]]


tunefarm.register_function("my.domain::Twice", lambda x: FACTOR * x, first, version="1")
"""


def tune(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "tunefarm.tuner.commands.entry", *arguments, cwd=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = (
        '<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>'
        "g (float[4] x) => (float[4] y) { t = my.domain.Twice (x) y = Exp (t) }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    (tmp_path / "mine.py").write_text(MODULE.replace("FACTOR", "2"))
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.float32))
    return tmp_path


BUILD = ("build", "--untuned", "--model", "m.onnx", "--output", "m.tuned")
RUN = ("run", "m.tuned", "--input", "x=x.npy", "--output", "y.npz")

CRASHING = """
#include <stdint.h>
#include <stdlib.h>

int32_t twice(int32_t inputs, int32_t outputs, void *const *data, const int32_t *types,
              const int32_t *ranks, const int64_t *const *sizes, const char *attributes,
              const void *context, char *error, int64_t error_bytes)
{
    if (((const float *)data[0])[0] < 0)
        abort();
    for (int64_t i = 0; i < sizes[0][0]; i++)
        ((float *)data[inputs])[i] = 2 * ((const float *)data[0])[i];
    return 0;
}
"""


def test_a_model_is_built_and_run_with_functions_of_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = "3"  # its build does not take the first one's result for its own
    for factor, commands in (("2", (BUILD,)), (second, (BUILD, RUN))):
        (folder / "mine.py").write_text(MODULE.replace("FACTOR", factor))
        for command in commands:
            done = tune(folder, *command, "--functions", "mine.py")
            assert done.returncode == 0, done.stderr
    with np.load(folder / "y.npz") as results:
        np.testing.assert_allclose(results["y"], np.exp(float(second) * np.arange(4)), rtol=1e-5)
    monkeypatch.chdir(folder)
    assert run_command(app, list(RUN)) == 1  # this process has no such function
    assert "my.domain::Twice" in (said := capsys.readouterr().err) and "Traceback" not in said


@pytest.mark.nightly
def test_a_crash_of_a_c_function_is_told_in_one_line(folder: Path) -> None:
    (folder / "twice.c").write_text(CRASHING)
    cc(folder, "-shared", "-fPIC", "-o", "libtwice.so", "twice.c")
    registered = 'tunefarm.CFunction(str(Path(__file__).with_name("libtwice.so")), "twice")'
    text = MODULE.replace("lambda x: FACTOR * x", registered)
    (folder / "mine.py").write_text(f"from pathlib import Path\n{text}")
    for threads in ("1", "2"):
        built = tune(folder, *BUILD, "--functions", "mine.py", "--threads", threads)
        assert built.returncode == 0, built.stderr
        done = tune(folder, *RUN, "--functions", "mine.py")
        assert done.returncode == 0, done.stderr
        np.save(folder / "below.npy", np.full(4, -1, np.float32))
        crashed = tune(folder, "run", "m.tuned", "--input", "x=below.npy", "--functions", "mine.py")
        assert crashed.returncode == 1
        (line,) = crashed.stderr.splitlines()
        assert "my.domain::Twice" in line and "crashed with signal SIGABRT" in line
        assert "in node 't', crashed" in line


@pytest.mark.nightly
def test_a_crash_says_the_sizes_where_they_are_open(folder: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>'
        "g (float[n] x) => (float[n] y) { t = my.domain.Twice (x) y = my.domain.Twice (t) }"
    )
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    (folder / "twice.c").write_text(CRASHING)
    cc(folder, "-shared", "-fPIC", "-o", "libtwice.so", "twice.c")
    registered = f'tunefarm.CFunction({str(folder / "libtwice.so")!r}, "twice")'
    (folder / "mine.py").write_text(MODULE.replace("lambda x: FACTOR * x", registered))
    built = tune(folder, *BUILD, "--shape", "n=1..3|4..8", "--functions", "mine.py")
    assert built.returncode == 0, built.stderr
    done = tune(folder, *RUN, "--functions", "mine.py")
    assert done.returncode == 0, done.stderr
    with np.load(folder / "y.npz") as results:
        np.testing.assert_array_equal(results["y"], 4 * np.arange(4, dtype=np.float32))
    np.save(folder / "x.npy", np.full(3, -1, np.float32))
    (line,) = tune(folder, *RUN, "--functions", "mine.py").stderr.splitlines()
    assert "in node 't', called with f32[3], crashed with signal SIGABRT" in line


def test_what_a_build_says_to_type_next_links_the_functions(folder: Path) -> None:
    (folder / "twice.c").write_text(CRASHING.replace("abort()", ";"))
    cc(folder, "-shared", "-fPIC", "-o", "libtwice.so", "twice.c")
    registered = 'tunefarm.CFunction("libtwice.so", "twice")'
    (folder / "mine.py").write_text(MODULE.replace("lambda x: FACTOR * x", registered))
    form = ("--emit", "c-header+shared-library", "--output", "m_c")
    built = tune(folder, "build", "--model", "m.onnx", "--untuned", "--functions", "mine.py", *form)
    assert built.returncode == 0, built.stderr
    (command,) = (line for line in (built.stdout + built.stderr).splitlines() if "next: " in line)
    assert run(folder, "sh", "-c", command.removeprefix("next: ")).startswith("y [4]: ")
    (header,) = (folder / "m_c").glob("*.h")
    assert f"-l{header.stem} your_functions.c -Wl" in header.read_text()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("none.py", None, "there is no such file"),
        ("raises.py", "1 / 0", "importing it raised ZeroDivisionError"),
        ("empty.py", "", "registers no function"),
        ("no_such_module", None, "importing it raised ModuleNotFoundError"),
    ],
)
def test_modules_that_are_none_are_refused_in_one_line(
    folder: Path,
    name: str,
    text: str | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text is not None:
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    assert run_command(app, [*BUILD, "--functions", name]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--functions {name}" in line and reason in line
    assert not (folder / "m.tuned").exists()
