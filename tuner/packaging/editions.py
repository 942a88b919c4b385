"""The build backend of pyproject.toml: setuptools', on the sources as they are imported.

    pip install .                                        tunefarm-0.1.0-py3-none-any.whl
    pip install --editable .                             the same, from links to the sources
    pip wheel . --config-settings edition=runtime        tunefarm_runtime-0.1.0-py3-none-any.whl

In the repository the packages lie at the top level; installed they are `tunefarm.compiler`,
`tunefarm.tuner` and so on. setuptools therefore builds in a folder where that is so: a temporary
copy for wheels, and `.editable` for editable installations, whose `tunefarm` has links to the
packages. That folder is a plain entry of the import path, so type checkers and editors follow it
as the interpreter does.

The runtime has the modules that loading and running a built model import, found by following
imports from `ENTRIES`, and needs NumPy and llvmlite alone. Its files are those of tunefarm itself,
to the byte: where both of one version are installed nothing changes, and whoever removes one of
them installs the other again.

Build frontends import this file by itself, with nothing of the project next to it.
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
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
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

PACKAGE = "tunefarm"
PARTS = ("compiler", "configs", "db", "measure", "tuner")
"""The folders of the repository that are packages of `PACKAGE`."""
FACADE, TYPED = OWN = ("tuner/facade.py", "tuner/py.typed")
"""The files that are `PACKAGE`'s own: its `__init__.py`, and the mark of typed packages."""
LINKS = ".editable"
"""Where an editable installation imports from: ignored by git, made by `pip install --editable
.`"""

ENTRIES = ("tunefarm", "tunefarm.compiler", "tunefarm.compiler.run_artefact")
"""The modules that users of the runtime import or start."""

BUILDS = frozenset(
    [
        "tunefarm.compiler.frontend.declared_ports",
        "tunefarm.compiler.pipeline",
        "tunefarm.configs.settings",
    ]
)
"""What builds models: imported when that is asked for, and then an error where it is not there."""

NEEDED = ("llvmlite", "numpy")
"""Of the project's dependencies those of the runtime."""
OPTIONAL = {"types": ("ml_dtypes",), "strings": ("google-re2",)}
"""Those that it needs where a model has element types that NumPy has not, or regular expressions,
by the extra that installs them."""

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
{optional}

[project.scripts]
tunefarm-run = "tunefarm.compiler.run_artefact:main"

[tool.setuptools.packages.find]
include = ["tunefarm*"]

[tool.setuptools.package-data]
"*" = ["py.typed"]
"""


def build_wheel(
    wheel_directory: str,
    config_settings: ConfigSettings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel of an edition; its file name."""
    target = os.path.abspath(wheel_directory)
    with _copied_sources(edition_of(config_settings)):
        name: str = build_meta.build_wheel(target, _others(config_settings))
    return name


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: ConfigSettings | None = None
) -> str:
    """Write the metadata of an edition; the name of their folder."""
    target = os.path.abspath(metadata_directory)
    with _copied_sources(edition_of(config_settings)):
        name: str = build_meta.prepare_metadata_for_build_wheel(target, _others(config_settings))
    return name


def build_editable(
    wheel_directory: str,
    config_settings: ConfigSettings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel that adds the folder of links to the import path; its file name."""
    target = os.path.abspath(wheel_directory)
    with _linked_sources(edition_of(config_settings)):
        name: str = build_meta.build_editable(target, _others(config_settings))
    return name


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: ConfigSettings | None = None
) -> str:
    """Write the metadata of an editable installation; the name of their folder."""
    target = os.path.abspath(metadata_directory)
    with _linked_sources(edition_of(config_settings)):
        name: str = build_meta.prepare_metadata_for_build_editable(target, _others(config_settings))
    return name


def edition_of(config_settings: ConfigSettings | None) -> str:
    """The edition that is asked for. Raises `ValueError` for one that there is not."""
    edition = (config_settings or {}).get("edition", FULL)
    if edition not in EDITIONS:
        raise ValueError(f"there is no edition {edition!r}: editions are {', '.join(EDITIONS)}")
    return str(edition)


def link_sources(root: Path) -> Path:
    """Make `LINKS` in `root`, which has the project's folders: an entry of the import path."""
    folder = root / LINKS
    package = folder / PACKAGE
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for part in PARTS:
        (package / part).symlink_to(Path("..", "..", part))
    for file in OWN:
        (folder / installed_name(file)).symlink_to(Path("..", "..", file))
    return folder


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


def installed_name(file: str) -> str:
    """Where a file of the repository's packages is installed, below the import path."""
    own = {FACADE: "__init__.py", TYPED: "py.typed"}
    return f"{PACKAGE}/{own.get(file, file)}"


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
        optional="\n".join(
            f"{extra} = {_requirements(project, names)}" for extra, names in OPTIONAL.items()
        ),
    )


def _requirements(project: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    """The project's requirements of these names, with their bounds."""
    found = [text for text in project["dependencies"] if text.split(">=")[0] in names]
    if len(found) != len(names):
        raise ValueError(f"pyproject.toml does not require each of {', '.join(names)}")
    return found


def _source(root: Path, module: str) -> Path | None:
    """The file of a module of the project, None for what is none."""
    if module == PACKAGE:
        return root / FACADE
    if not module.startswith(f"{PACKAGE}."):
        return None
    path = root.joinpath(*module.split(".")[1:])
    options = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((option for option in options if option.is_file()), None)


def _others(config_settings: ConfigSettings | None) -> dict[str, Any]:
    """The settings that are for setuptools."""
    return {key: value for key, value in (config_settings or {}).items() if key != "edition"}


@contextmanager
def _copied_sources(edition: str) -> Iterator[None]:
    """Within it the current folder holds the sources of an edition, and nothing else."""
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix=f"tunefarm-{edition}-") as name:
        folder = Path(name)
        _copy_project(root, folder)
        if edition == RUNTIME:
            (folder / "pyproject.toml").write_text(runtime_project(root), encoding="utf-8")
        for file in [*runtime_files(root), TYPED] if edition == RUNTIME else _files(root):
            copied = folder / installed_name(file)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / file, copied)
        with _inside(folder):
            yield


@contextmanager
def _linked_sources(edition: str) -> Iterator[None]:
    """Within it the current folder is `LINKS`, whose `PACKAGE` has links to the sources."""
    if edition != FULL:
        raise ValueError(f"the edition {edition} cannot be installed editable: pip install .")
    folder = link_sources(Path.cwd())
    _copy_project(Path.cwd(), folder)
    with _inside(folder):
        yield


def _copy_project(root: Path, folder: Path) -> None:
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copyfile(root / name, folder / name)


def _files(root: Path) -> list[str]:
    """Every file of the packages, as paths relative to `root`."""
    found = (path for part in PARTS for path in (root / part).rglob("*") if path.is_file())
    names = (path.relative_to(root).as_posix() for path in found)
    return sorted(name for name in names if "__pycache__" not in name)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
