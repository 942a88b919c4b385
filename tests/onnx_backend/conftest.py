"""The backend cases that run by day."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from onnx.backend.test.case.test_case import TestCase

from tests.onnx_backend.scoreboard import load_cases

FILES = 4
EVERY = {"compiled": 8, "sizes": 24}
"""One case of so many runs, of a file of so many: the importer's own tests have more of each
operator."""


@pytest.fixture(scope="session")
def some_cases(folder_of_the_run: Path) -> Mapping[str, Sequence[TestCase]]:
    """Those of each kind; onnx computes what a file's cases give when it loads it, so the first of
    the test processes does it for the others."""
    file = folder_of_the_run / "onnx-backend-cases.pickle"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            cases = load_cases(every=FILES)
            plain = [c for c in cases if c.kind == "node" and not c.name.endswith("_expanded")]
            chosen = {"compiled": cases, "sizes": plain}
            file.write_bytes(pickle.dumps({n: c[:: EVERY[n]] for n, c in chosen.items()}))
    found: Mapping[str, Sequence[TestCase]] = pickle.loads(file.read_bytes())
    return found
