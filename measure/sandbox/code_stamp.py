"""Which sources a process runs: those of a job's processes are the same to the byte."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of `tunefarm` that this process imports."""
MEASURING = ("compiler", "configs", "measure")
"""The packages that decide what is measured."""


@cache  # as they were when this process was first asked: soon after its start
def code_stamp() -> str:
    """The folder of the sources with a hash of their names, sizes and times: on one machine only.

    Reading all of them would take as long as starting a process does.
    """
    digest = hashlib.sha256()
    for package in MEASURING:
        for path in sorted((ROOT / package).rglob("*.py")):
            status = path.stat()
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return f"{ROOT} ({digest.hexdigest()[:8]})"
