"""Which versions of what matter for measurements a machine has: those of a farm are alike."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from tunefarm.compiler.version import VERSION

COMPILER = "the compiler"


def versions() -> dict[str, str]:
    """The versions here, by what a person calls them.

    Of Python the first two numbers: what is compiled does not depend on the third, Ray looks at it.
    """
    return {
        COMPILER: VERSION,
        "llvmlite": _version_of("llvmlite"),
        "NumPy": _version_of("numpy"),
        "Ray": _version_of("ray"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What differs between two machines, in a line; "" if nothing does."""
    names = [name for name in here if there.get(name) != here[name]]
    return ", ".join(
        f"{name} is {here[name]} here and {there.get(name, 'unknown')} there" for name in names
    )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
