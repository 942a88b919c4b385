"""Fixtures and options that every area's tests may use."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.db import postgresql as server

_NOBODY = 65534
_ALONE = (
    "tests/measure/",
    "tests/contracts/test_runner_contract.py",
    "tests/end_to_end/test_cli.py",
    "tests/end_to_end/test_cli_postgresql.py",
    "tests/tuner/test_confirm.py",
    "tests/tuner/test_driver_kill.py",
    "tests/tuner/test_latency.py",
    "tests/tuner/test_replay_records.py",
    "tests/compiler/runtime/test_concurrent_runs.py",
    "tests/compiler/runtime/test_thread_pool.py",
    "tests/db/test_concurrency.py",
)
"""What measures, or loads all cores by itself; the rest may run in several processes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew from what the code prints now",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix().startswith(_ALONE):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep compiled kernels out of the user's cache; child processes inherit it."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def unwritable_folder() -> Iterator[Path]:
    """A folder that this process may read but not write, even where tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-"))
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(_NOBODY)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[server.Server]:
    """A PostgreSQL server; the test is skipped where none is installed, or fails in `.ci/run`."""
    with server.running_server() as running:
        yield running


@pytest.fixture
def postgresql_url(postgresql: server.Server) -> Iterator[str]:
    """A URL, with a password, of a new and empty database."""
    with postgresql.database() as name:
        yield postgresql.url(name)
