"""What the runtime's edition is made of, and what it needs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunefarm.tuner.packaging.editions import (
    BUILDS,
    EDITIONS,
    NEEDED,
    edition_of,
    imported_modules,
    installed_name,
    runtime_files,
    runtime_project,
)


def modules_of(name: str, repository: Path) -> Iterator[str]:
    """What a file imports that is in the repository, or in a library."""
    for module in imported_modules(ast.parse((repository / name).read_text(encoding="utf-8"))):
        path = repository.joinpath(*module.split(".")[1:])
        if not module.startswith("tunefarm.") or path.is_dir() or path.with_suffix(".py").exists():
            yield module


def test_the_runtime_needs_nothing_but_numpy_and_llvmlite(repository: Path) -> None:
    files = runtime_files(repository)
    named = (installed_name(file).removesuffix(".py").removesuffix("/__init__") for file in files)
    have = {name.replace("/", ".") for name in named}
    late = {"ml_dtypes", "re2"}
    for name in files:
        for module in modules_of(name, repository):
            top = module.split(".")[0]
            if top == "tunefarm":
                assert module in have | BUILDS, f"{name} imports {module}"
            else:
                assert top in {*NEEDED, *late, *sys.stdlib_module_names}, f"{name}: {module}"


def test_the_runtime_has_what_runs_models_and_nothing_that_builds_them(repository: Path) -> None:
    files = runtime_files(repository)
    for name in (
        "compiler/__init__.py",
        "compiler/foreign_functions.py",
        "compiler/run_artefact.py",
        "compiler/runtime/execution/loaded_program.py",
        "compiler/runtime/execution/try_function.py",
        "compiler/session/inference_session.py",
        "configs/errors.py",
        "tuner/facade.py",
    ):
        assert name in files
    rooms = {"/".join(name.split("/")[:2]) for name in files if name.count("/") > 1}
    parts = ("machine", "runtime", "session", "strings", "types")
    assert rooms == {f"compiler/{part}" for part in parts}
    assert len(files) < 116


def test_the_runtimes_project_says_what_the_projects_does(repository: Path) -> None:
    text = runtime_project(repository)
    ours = (repository / "pyproject.toml").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith(("version", "requires-python", "license")):
            assert f"\n{line}\n" in ours
    assert "dependencies = ['llvmlite>=" in text and "types = ['ml_dtypes>=" in text


@pytest.mark.parametrize("settings", [None, {}, {"edition": "full"}, {"--build-option": "x"}])
def test_all_of_it_is_what_is_built_unless_asked(settings: dict[str, str] | None) -> None:
    assert edition_of(settings) == EDITIONS[0]


def test_an_edition_that_there_is_not_is_an_error() -> None:
    assert edition_of({"edition": "runtime"}) == "runtime"
    with pytest.raises(ValueError, match=r"no edition 'small': editions are full, runtime"):
        edition_of({"edition": "small"})
