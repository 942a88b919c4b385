"""The build backend of pyproject.toml: setuptools', on the sources as they are imported.

    pip install .               tunefarm-0.1.0-py3-none-any.whl
    pip install --editable .    the same, from links to the sources

In the repository the packages lie at the top level; installed they are `tunefarm.compiler`,
`tunefarm.tuner` and so on. setuptools therefore builds in a folder where that is so: a temporary
copy for wheels, and `.editable` for editable installations, whose `tunefarm` has links to the
packages. That folder is a plain entry of the import path, so type checkers and editors follow it
as the interpreter does.

Build frontends import this file by itself, with nothing of the project next to it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

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

PACKAGE = "tunefarm"
PARTS = ("compiler", "configs", "db", "measure", "tuner")
"""The folders of the repository that are packages of `PACKAGE`."""
FACADE, CAPI, TYPED = OWN = ("tuner/facade.py", "tuner/capi.py", "tuner/py.typed")
"""The files that are `PACKAGE`'s own: its `__init__.py`, the names of onnxruntime's own `capi`, and
the mark of typed packages."""
LINKS = ".editable"
"""Where an editable installation imports from: ignored by git, made by `pip install --editable
.`"""


def build_wheel(
    wheel_directory: str,
    config_settings: ConfigSettings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel; its file name."""
    target = os.path.abspath(wheel_directory)
    with _copied_sources():
        name: str = build_meta.build_wheel(target, config_settings)
    return name


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: ConfigSettings | None = None
) -> str:
    """Write the metadata of a wheel; the name of their folder."""
    target = os.path.abspath(metadata_directory)
    with _copied_sources():
        name: str = build_meta.prepare_metadata_for_build_wheel(target, config_settings)
    return name


def build_editable(
    wheel_directory: str,
    config_settings: ConfigSettings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel that adds the folder of links to the import path; its file name."""
    target = os.path.abspath(wheel_directory)
    with _linked_sources():
        name: str = build_meta.build_editable(target, config_settings)
    return name


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: ConfigSettings | None = None
) -> str:
    """Write the metadata of an editable installation; the name of their folder."""
    target = os.path.abspath(metadata_directory)
    with _linked_sources():
        name: str = build_meta.prepare_metadata_for_build_editable(target, config_settings)
    return name


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


def installed_name(file: str) -> str:
    """Where a file of the repository's packages is installed, below the import path."""
    own = {FACADE: "__init__.py", CAPI: "capi.py", TYPED: "py.typed"}
    return f"{PACKAGE}/{own.get(file, file)}"


@contextmanager
def _copied_sources() -> Iterator[None]:
    """Within it the current folder holds the sources, and nothing else."""
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="tunefarm-") as name:
        folder = Path(name)
        _copy_project(root, folder)
        for file in _files(root):
            copied = folder / installed_name(file)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / file, copied)
        with _inside(folder):
            yield


@contextmanager
def _linked_sources() -> Iterator[None]:
    """Within it the current folder is `LINKS`, whose `PACKAGE` has links to the sources."""
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
