"""A built model runs where nothing but NumPy and llvmlite is installed with tunefarm."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
import venv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler import build
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.runtime.execution.executable import Executable

NEEDED = ("numpy", "llvmlite")
CODE_GENERATOR = "kernels loops schedule operators graph plan frontend llvm pipeline".split()
TOO_MUCH = set(
    "onnx ray xgboost optuna sqlalchemy alembic pydantic typer click rich scipy google yaml".split()
)

RUN = """
import json, sys
import numpy as np
import tunefarm

model, inputs, threads, outputs = sys.argv[1:]
executable = tunefarm.load(model, threads=int(threads))
arrays = dict(np.load(inputs))
results = executable.run(arrays)
session = tunefarm.InferenceSession(model, tunefarm.SessionOptions(intra_op_num_threads=2))
for name, array in zip(results, session.run(None, arrays), strict=True):
    np.testing.assert_array_equal(array, results[name])
profile = executable.profile(arrays, repeat=2)
for name, array in results.items():
    np.testing.assert_array_equal(profile.outputs[name], array)
np.savez(outputs, **results)
from importlib.metadata import distributions
print(json.dumps({
    "modules": sorted(sys.modules),
    "installed": sorted(found.name for found in distributions()),
    "origin": tunefarm.__file__,
}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The interpreter of a virtual environment with tunefarm and what a built model needs.

    The two distributions are links to those installed here, with whatever files they list.
    """
    root = tmp_path_factory.mktemp("runtime_only")
    venv.create(root, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)}))
    for name in NEEDED:
        distribution = importlib.metadata.distribution(name)
        listed = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
        assert name in listed
        for top in listed:
            (site / top).symlink_to(str(distribution.locate_file(top)))
    (site / "tunefarm").symlink_to(repository / ".editable" / "tunefarm")
    return root / "bin" / "python"


def run_there(python: Path, folder: Path, executable: Executable, threads: int) -> dict[str, Any]:
    """Run the model there and here, compare the outputs; what the other process said."""
    rng = np.random.default_rng(5)
    model, inputs, outputs = (folder / name for name in ("m.tuned", "inputs.npz", "outputs.npz"))
    executable.save(model)
    arrays = {
        name: rng.standard_normal(type.shape).astype(type.dtype.numpy)
        for name, type in executable.inputs.items()
    }
    np.savez(inputs, **arrays)  # type: ignore[arg-type]  # no input is called allow_pickle
    done = subprocess.run(
        [python, "-I", "-B", "-c", RUN, model, inputs, str(threads), outputs],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    here, there = executable.run(arrays), np.load(outputs)
    assert set(here) == set(there.files)
    for name, array in here.items():
        np.testing.assert_array_equal(there[name], array)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@cache
def models() -> dict[str, onnx.ModelProto]:
    return {
        "convolutions": tiny_model(),
        "transformer": build_model("encoder", size=Size(width=0.25, tokens=16, layers=1)),
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", models())
def test_a_built_model_runs_with_numpy_and_llvmlite_alone(
    python: Path, tmp_path: Path, name: str, threads: int
) -> None:
    executable = build(import_model_proto(models()[name]), threads=threads)
    said = run_there(python, tmp_path, executable, threads)
    assert set(said["installed"]) == set(NEEDED)
    assert said["origin"].startswith(str(python.parents[1]))
    modules = set(said["modules"])
    packages = {module.partition(".")[0] for module in modules}
    assert packages.isdisjoint(TOO_MUCH)
    foreign = {name for name in packages if not name.startswith("_")} - sys.stdlib_module_names
    assert foreign == {*NEEDED, "tunefarm"}
    parts = {module.split(".")[1] for module in modules if module.startswith("tunefarm.")}
    assert parts == {"compiler", "configs"}
    assert modules.isdisjoint(f"tunefarm.compiler.{part}" for part in CODE_GENERATOR)


def test_the_runtimes_command_runs_and_writes(python: Path, tmp_path: Path) -> None:
    executable = build(import_model_proto(models()["convolutions"]))
    executable.save(tmp_path / "m.tuned")
    (pixels,) = (np.full(type.shape, 0.5, np.float32) for type in executable.inputs.values())
    np.save(tmp_path / "x.npy", pixels)
    given = ["--input", "x=x.npy", "--output", "out.npz", "--repeat", "3", "--threads", "2"]
    done = command(python, tmp_path, "m.tuned", *given)
    assert (done.returncode, done.stderr) == (0, "")
    assert "y: float32[1, 10]\nlatency: median " in done.stdout
    assert "(3 runs, 2 threads)" in done.stdout
    expected = executable.run({"x": pixels})["y"]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], expected)


def test_what_the_runtime_cannot_do_is_an_error_of_one_line(python: Path, tmp_path: Path) -> None:
    done = command(python, tmp_path, "no.tuned")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: cannot read no.tuned") and done.stderr.count("\n") == 1
    onnx.save(tiny_model(), tmp_path / "m.onnx")
    building = "import tunefarm\nfrom tunefarm.compiler.errors import ImportModelError\n"
    building += "try:\n    tunefarm.InferenceSession('m.onnx')\n"
    building += "except ImportModelError as error:\n    print(error)\n"
    built = subprocess.run(
        [python, "-I", "-B", "-c", building],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    assert "no model can be built here: onnx is not installed" in built.stdout
    assert "or build elsewhere" in built.stdout
    tuning = subprocess.run(
        [python, "-I", "-B", "-c", "from tunefarm import tune"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "ImportError: tunefarm.tune needs libraries" in tuning.stderr


def command(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `tunefarm-run` there."""
    return subprocess.run(
        [python, "-I", "-B", "-m", "tunefarm.compiler.run_artefact", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
