"""Which versions of what matter for measurements a machine has: those of a farm are alike.

A process that works for a driver is asked too: it imports what its own path has, and that may be
another tunefarm than the driver's, or one that was installed or edited after the driver began.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tunefarm.compiler.content_cache import source_digest
from tunefarm.compiler.version import VERSION
from tunefarm.measure.sandbox.code_stamp import MEASURING, ROOT
from tunefarm.measure.sandbox.worker_process import WorkerStartError

COMPILER = "the compiler"
SOURCES = "tunefarm"


def versions() -> dict[str, str]:
    """The versions here, by what a person calls them.

    Of Python the first two numbers: what is compiled does not depend on the third, Ray looks at it.
    """
    return {
        COMPILER: VERSION,
        SOURCES: f"{_version_of('tunefarm')} with the sources {_sources()}",
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


@cache  # as they were when this process was first asked, which is what it runs
def _sources() -> str:
    digests = "".join(source_digest(ROOT / package) for package in MEASURING)
    return hashlib.sha256(digests.encode()).hexdigest()[:8]


def check_versions(drivers: Mapping[str, str]) -> None:
    """Raise `WorkerStartError` if this process has other versions than its driver."""
    if different := differences(drivers, versions()):
        raise WorkerStartError(
            f"a worker that imports {ROOT} runs other code than this job: {different}; install "
            "one version everywhere, and start the job again"
        )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
