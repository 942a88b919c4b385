"""The build backend of pyproject.toml: setuptools', and a second distribution of the same sources.

    pip wheel .                                          tunefarm-0.1.0-py3-none-any.whl
    pip wheel . --config-settings edition=runtime        tunefarm_runtime-0.1.0-py3-none-any.whl

The runtime has the modules that loading and running a built model import, found by following
imports from `ENTRIES`, and needs NumPy and llvmlite alone. Its files are those of tunefarm itself,
to the byte: where both of one version are installed nothing changes, and whoever removes one of
them installs the other again.

Build frontends import this file by itself, with nothing of the project beside it.
"""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ConfigSettings: TypeAlias = Mapping[str, str | list[str] | None]

FULL, RUNTIME = EDITIONS = ("full", "runtime")

ENTRIES = ("compiler", "compiler.run_artefact")
"""The modules that users of the runtime import or start."""

BUILDS = frozenset(["compiler.pipeline"])
"""What builds models: imported when that is asked for, and then an error where it is not there."""

NEEDED = ("llvmlite", "numpy")
"""Of the project's dependencies those of the runtime."""
OPTIONAL = ("ml_dtypes",)
"""Those that it needs where a model has element types that NumPy has not."""

_PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tunefarm-runtime"
version = "{version}"
description = "Runs models that tunefarm has built; needs NumPy and llvmlite alone."
requires-python = "{python}"
license = "{license}"
license-files = ["LICENSE"]
dependencies = {dependencies}

[project.optional-dependencies]
types = {optional}

[project.scripts]
tunefarm-run = "compiler.run_artefact:main"

[tool.setuptools.packages.find]
include = ["compiler*", "configs*"]

[tool.setuptools.package-data]
"*" = ["py.typed"]
"""


def build_wheel(
    wheel_directory: str,
    config_settings: ConfigSettings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel of an edition; its file name."""
    if edition_of(config_settings) == FULL:
        name: str = build_meta.build_wheel(
            wheel_directory, _others(config_settings), metadata_directory
        )
        return name
    target = os.path.abspath(wheel_directory)
    with _runtime_sources():
        name = build_meta.build_wheel(target, _others(config_settings))
        return name


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: ConfigSettings | None = None
) -> str:
    """Write the metadata of an edition; the name of their folder."""
    target = os.path.abspath(metadata_directory)
    if edition_of(config_settings) == FULL:
        name: str = build_meta.prepare_metadata_for_build_wheel(target, _others(config_settings))
        return name
    with _runtime_sources():
        name = build_meta.prepare_metadata_for_build_wheel(target, _others(config_settings))
        return name


def edition_of(config_settings: ConfigSettings | None) -> str:
    """The edition that is asked for. Raises `ValueError` for one that there is not."""
    edition = (config_settings or {}).get("edition", FULL)
    if edition not in EDITIONS:
        raise ValueError(f"there is no edition {edition!r}: editions are {', '.join(EDITIONS)}")
    return str(edition)


def runtime_files(root: Path) -> list[str]:
    """The runtime's Python files below `root`, as paths relative to it."""
    found: dict[str, Path] = {}
    waiting = list(ENTRIES)
    while waiting:
        module = waiting.pop()
        path = _source(root, module)
        if module in found or module in BUILDS or path is None:
            continue
        found[module] = path
        waiting += (module.rsplit(".", level)[0] for level in range(1, module.count(".") + 1))
        waiting += imported_modules(ast.parse(path.read_text(encoding="utf-8")))
    return sorted(path.relative_to(root).as_posix() for path in found.values())


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """What a file imports anywhere when it runs; of `from a import b` both a and a.b."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imported_modules(node)


def runtime_project(root: Path) -> str:
    """The runtime's pyproject.toml: what that of `root` says, for a part of it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return _PROJECT.format(
        version=project["version"],
        python=project["requires-python"],
        license=project["license"],
        dependencies=_requirements(project, NEEDED),
        optional=_requirements(project, OPTIONAL),
    )


def _requirements(project: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    """The project's requirements of these names, with their bounds."""
    found = [text for text in project["dependencies"] if text.split(">=")[0] in names]
    if len(found) != len(names):
        raise ValueError(f"pyproject.toml does not require each of {', '.join(names)}")
    return found


def _source(root: Path, module: str) -> Path | None:
    """The file of a module of the project, None for what is none."""
    path = root.joinpath(*module.split("."))
    options = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((option for option in options if option.is_file()), None)


def _others(config_settings: ConfigSettings | None) -> dict[str, Any]:
    """The settings that are for setuptools."""
    return {key: value for key, value in (config_settings or {}).items() if key != "edition"}


@contextmanager
def _runtime_sources() -> Iterator[None]:
    """Within it the current folder holds the sources of the runtime, and nothing else."""
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="tunefarm-runtime-") as name:
        folder = Path(name)
        files = [*runtime_files(root), "LICENSE", "compiler/py.typed", "configs/py.typed"]
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / file, folder / file)
        (folder / "pyproject.toml").write_text(runtime_project(root), encoding="utf-8")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(root)
