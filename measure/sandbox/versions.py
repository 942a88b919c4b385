"""Which versions of what matters for measurements a process has: those of all that measure for a
job, or for a farm, are alike.

Ray carries `call_if_alike` by value to processes that may find another tunefarm, or none. So
nothing of ours is imported here, and files are read where an import would find them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

COMPILER = "the compiler"
TUNEFARM = "tunefarm"
_MISSING = "missing"
_MEASURED = ("compiler", "configs", "measure")
"""The packages that decide what is measured, and how."""
_DIGITS = 8  # of a digest of files; people compare them


class Installation(NamedTuple):
    """A tunefarm as a process finds it: its folder ("" if there is none), and the versions."""

    folder: str
    versions: Mapping[str, str]

    def difference(self, there: Installation) -> str:
        """What differs between this process and another one, in a line; "" if nothing does."""
        different = differences(self.versions, there.versions)
        if self.versions.get(TUNEFARM) == there.versions.get(TUNEFARM):
            return different
        where = f"{self.folder or 'not found'} here and {there.folder or 'not found'} there"
        return f"{different}, from {where}"


def versions() -> dict[str, str]:
    """The versions here, by what a person calls them.

    Of Python the first two numbers: what is compiled does not depend on the third, Ray looks at it.
    Of tunefarm a digest of the files as well: a checkout that was edited is another one.
    """
    folder = package_folder()
    return {
        COMPILER: _assigned(folder, "compiler/version.py", "VERSION"),
        "llvmlite": _version_of("llvmlite"),
        "NumPy": _version_of("numpy"),
        "Ray": _version_of("ray"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
        TUNEFARM: f"{_assigned(folder, '__init__.py', '__version__')} (files {_digest(folder)})",
    }


@cache
def installation() -> Installation:
    """What this process has: as when it was first asked, which is what it runs."""
    return Installation(package_folder(), versions())


def call_if_alike(
    here: Mapping[str, str], function: str, arguments: Sequence[object]
) -> tuple[str, Mapping[str, str], object]:
    """What a function (`module:name`) of ours returns in a process that may not have this module,
    behind the fields of its `Installation`. Nothing is called where the versions are not `here`."""
    folder, found = package_folder(), versions()
    if differences(here, found):
        return folder, found, None
    from tunefarm.measure.sandbox.by_name import by_name  # it is the same one here

    return folder, found, by_name(function)(*arguments)


@cache  # as they were when this process was first asked: soon after its start
def code_stamp() -> str:
    """Which sources this process runs: their folder, and a hash of their names, sizes and times.

    Those of a job's processes on one machine are alike. Reading all of them, as `versions` does,
    would take as long as starting a process does.
    """
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in _MEASURED:
        for path in sorted((root / package).rglob("*.py")):
            status = path.stat()
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return f"{root} ({digest.hexdigest()[:_DIGITS]})"


def package_folder() -> str:
    """The folder of the package tunefarm that this process imports; "" if it finds none."""
    try:
        found = importlib.util.find_spec(TUNEFARM)
    except (ImportError, ValueError):  # what was imported under this name is no package
        return ""
    file = None if found is None else found.origin
    return os.path.realpath(os.path.dirname(file)) if file else ""


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What differs between two machines, in a line; "" if nothing does."""
    names = [name for name in here if there.get(name) != here[name]]
    return ", ".join(
        f"{name} is {here[name]} here and {there.get(name, 'unknown')} there" for name in names
    )


def _assigned(folder: str, path: str, name: str) -> str:
    """The string that a file of the package assigns to a name."""
    if not folder:
        return _MISSING
    try:
        with open(os.path.join(folder, path), encoding="utf-8", errors="replace") as file:
            found = re.search(rf'^{name} = "(.*)"', file.read(), re.MULTILINE)
    except OSError:
        return _MISSING
    return _MISSING if found is None else found[1]


def _digest(folder: str) -> str:
    """A digest of the sources that measure; those that cannot be read are left out."""
    found = hashlib.sha256()
    for package in _MEASURED if folder else ():
        top = os.path.join(folder, package)
        for parent, folders, files in os.walk(top):
            folders.sort()
            for name in sorted(file for file in files if file.endswith(".py")):
                path = os.path.join(parent, name)
                try:
                    with open(path, "rb") as source:
                        content = source.read()
                except OSError:
                    continue
                relative = os.path.relpath(path, top)
                found.update(f"{package}/{relative} {len(content)}\n".encode() + content)
    return found.hexdigest()[:_DIGITS]


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return _MISSING
