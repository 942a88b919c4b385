"""The distributions as they are built and installed, in minutes; part of `.ci/run`.

    python -m pytest -m nightly tests/tuner/packaging/test_packages.py

The environment that only runs models is made by pip, which needs NumPy and llvmlite from where it
gets them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.tuner.packaging.build_backend import PARTS, installed_name

pytestmark = pytest.mark.nightly

BUILD_SDIST = """
import sys
sys.path.insert(0, "tuner/packaging")
import build_backend
print(build_backend.build_sdist(sys.argv[1]))
"""
SESSION = """
import numpy, sys, tunefarm
assert "/site-packages/" in tunefarm.__file__, tunefarm.__file__
session = tunefarm.InferenceSession(sys.argv[1])
feed = {i.name: numpy.zeros(i.shape, "float32") for i in session.get_inputs()}
print([output.shape for output in session.run(None, feed)])
"""
DATA = """
from tunefarm.configs.settings import load_settings, load_target, presets, targets
from tunefarm.db.store import Store

assert {load_settings(name) for name in presets()} and len(presets()) == 3
assert {load_target(name) for name in targets()}
Store.open("tuning.db").close()
Store.open("tuning.db", create=False).close()
"""
USER = """
import tunefarm
from tunefarm.compiler import InferenceSession

executable = tunefarm.build("m.onnx", db="tuning.db")
reveal_type(executable.run({}))
reveal_type(tunefarm.load("m.tuned").threads)
reveal_type(tunefarm.tune("m.onnx", trials=3).tasks)
reveal_type(InferenceSession("m.tuned").get_inputs()[0].shape)
tunefarm.tune("m.onnx", trials="many")
"""


def run(*command: str | Path, cwd: Path, path: Path | None = None, status: int = 0) -> str:
    """What a command prints; it ends with this status."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    if path is not None:
        environment["PATH"] = f"{path}:{environment['PATH']}"
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == status, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


IMPORTED = (
    "compiler.py db.py measure.py configs/__init__.py configs/prod.py tuner/__init__.py".split()
)
"""Modules of a user that a program of theirs imports."""
SHADOWING = ("numpy.py", "queue.py", "tunefarm/__init__.py")
"""Others in the folder, that libraries would import if it were on their path."""
PROGRAM = """
import sys
import compiler, configs.prod, db, measure, tuner
import tunefarm

assert "/program" not in tunefarm.__file__, tunefarm.__file__
session = tunefarm.InferenceSession(sys.argv[1])
import numpy
feed = {i.name: numpy.zeros(i.shape, "float32") for i in session.get_inputs()}
print([output.shape for output in session.run(None, feed)])
own = (compiler, configs, configs.prod, db, measure, tuner)
print([module.__name__ for module in own if not hasattr(module, "OF_THE_PROGRAM")])
"""


@dataclass(frozen=True)
class Packages:
    """The source distribution, and the wheel that is built from it."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Packages:
    work = tmp_path_factory.mktemp("packages")
    source = copy_sources(repository, work / "source")
    name = run(sys.executable, "-c", BUILD_SDIST, work, cwd=source).split()[-1]
    wheel = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    run(*wheel, "-w", work, work / name, cwd=work)
    (full,) = work.glob("tunefarm-*.whl")
    return Packages(work / name, full)


@pytest.fixture(scope="module")
def full(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel, and the libraries that are installed here."""
    return environment(tmp_path_factory.mktemp("full"), packages.wheel)


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The `bin` of an environment with an editable installation of a copy of the sources."""
    root = tmp_path_factory.mktemp("editable")
    copied = copy_sources(repository, root / "source")
    return environment(root / "venv", "--no-build-isolation", "--editable", copied)


def environment(root: Path, *install: str | Path) -> Path:
    """The `bin` of a new environment: what pip installs, with the libraries of this one."""
    venv.create(root, with_pip=False)
    python = root / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)}))
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(*pip, *install, cwd=root)
    return root / "bin"


def copy_sources(repository: Path, source: Path) -> Path:
    unwanted = shutil.ignore_patterns("__pycache__")
    for package in PARTS:
        shutil.copytree(repository / package, source / package, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, source)
    return source


def test_the_wheel_has_every_file_of_the_sources(packages: Packages, repository: Path) -> None:
    wanted = sources(repository)
    held = set(zipfile.ZipFile(packages.wheel).namelist())
    assert {name for name in held if ".dist-info/" not in name} == set(map(installed_name, wanted))
    with tarfile.open(packages.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*wanted, "pyproject.toml", "README.md", "LICENSE"} <= names


def sources(repository: Path) -> set[str]:
    """All files of the packages: those that git tracks, where it is."""
    if (repository / ".git").exists() and shutil.which("git"):
        return set(filter(None, run("git", "ls-files", *PARTS, cwd=repository).split("\n")))
    found = (path for package in PARTS for path in (repository / package).rglob("*"))
    files = {path.relative_to(repository).as_posix() for path in found if path.is_file()}
    return {name for name in files if "__pycache__" not in name}


def test_a_model_is_built_with_the_wheel_and_run_with_numpy_and_llvmlite(
    full: Path, packages: Packages, tmp_path: Path
) -> None:
    assert "--model" in run("tune", "--help", cwd=tmp_path, path=full)
    assert "--model" in run("tunefarm", "--help", cwd=tmp_path, path=full)
    run(full / "python", "-c", DATA, cwd=tmp_path)
    assert "\ncommands " in run("tune", "docs", cwd=tmp_path, path=full)
    run("tune", "zoo", "mlp", "--output", "mlp.onnx", cwd=tmp_path, path=full)
    built = ("--model", "mlp.onnx", "--untuned", "--no-cache", "--output", "mlp.tuned")
    run("tune", "build", *built, cwd=tmp_path, path=full)
    run("tune", "db", "check", "--db", "no.db", cwd=tmp_path, path=full, status=1)
    venv.create(tmp_path / "venv", with_pip=False)
    there = tmp_path / "venv" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", there / "python")
    run(*pip, "install", "-q", "--no-deps", packages.wheel, "numpy", "llvmlite", cwd=tmp_path)
    listed = run(*pip, "list", "--format=freeze", cwd=tmp_path).split()
    assert sorted(line.split("==")[0].lower() for line in listed) == [
        "llvmlite",
        "numpy",
        "tunefarm",
    ]
    assert "latency: median" in run("tunefarm-run", "mlp.tuned", cwd=tmp_path, path=there)
    assert "(1," in run(there / "python", "-c", SESSION, "mlp.tuned", cwd=tmp_path)


def fill(folder: Path, shadowing: tuple[str, ...] = ()) -> Path:
    """A folder of a user with modules of these names; whatever imports a shadowing one fails."""
    for file in (*IMPORTED, *shadowing):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        refuses = file in shadowing
        text = "raise ImportError('this is of the user')" if refuses else "OF_THE_PROGRAM = True"
        (folder / file).write_text(text + "\n")
    return folder


@pytest.mark.parametrize("installed", ["full", "editable"])
def test_commands_work_in_a_folder_that_has_all_these_names(
    installed: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    there: Path = request.getfixturevalue(installed)
    folder = fill(tmp_path / "program", SHADOWING)
    run("tune", "zoo", "mlp", "--output", "mlp.onnx", cwd=folder, path=there)
    job = ("--config", "ci", "--trials", "3", "--runner", "ray", "--seed", "1")
    run("tune", "--model", "mlp.onnx", *job, cwd=folder, path=there)
    built = ("--model", "mlp.onnx", "--db", "tuning.db", "--no-cache", "--output", "mlp.tuned")
    run("tune", "build", *built, cwd=folder, path=there)
    assert "latency: median" in run("tune", "run", "mlp.tuned", cwd=folder, path=there)
    assert "no problems" in run("tune", "db", "check", "--db", "tuning.db", cwd=folder, path=there)


@pytest.mark.parametrize("installed", ["full", "editable"])
def test_a_program_with_modules_of_these_names_loads_a_model(
    installed: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    there: Path = request.getfixturevalue(installed)
    compiler.build(import_model_proto(tiny_model())).save(tmp_path / "m.tuned")
    folder = fill(tmp_path / "program")
    (folder / "app.py").write_text(PROGRAM)
    said = run(there / "python", "app.py", tmp_path / "m.tuned", cwd=folder)
    assert said == "[(1, 10)]\n[]\n"


@pytest.mark.parametrize("installed", ["full", "editable"])
def test_type_checkers_see_the_types_of_what_is_installed(
    installed: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    there: Path = request.getfixturevalue(installed)
    (tmp_path / "user.py").write_text(USER)
    check = (sys.executable, "-m", "mypy", "--python-executable", there / "python", "user.py")
    said = run(*check, cwd=tmp_path, status=1)
    assert 'user.py:6: note: Revealed type is "dict[str, numpy.ndarray[' in said
    assert 'user.py:7: note: Revealed type is "int"' in said
    assert (
        'user.py:8: note: Revealed type is "tuple[tunefarm.tuner.reports.report.TaskStatus' in said
    )
    assert 'user.py:9: note: Revealed type is "list[int | str]"' in said
    assert 'user.py:10: error: Argument "trials"' in said
    assert "Found 1 error in 1 file" in said
