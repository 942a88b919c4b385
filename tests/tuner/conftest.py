"""A store for the tests of the tuner, and what they do quickly, since others test it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.db.examples import populate
from tests.db.ready_schema import ready_schema
from tests.in_process_import import importing_in_process
from tests.known_kernels import known_kernels
from tunefarm.db.store import Store


@pytest.fixture(autouse=True, scope="module")
def without_processes_and_migrations(folder_of_the_run: Path) -> Iterator[None]:
    """Models are read in this process, built of kernels that were compiled before, and new
    databases are made without the migrations."""
    with importing_in_process(), ready_schema(), known_kernels(folder_of_the_run):
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Of a new file."""
    with Store.open(tmp_path / "tuning.db") as store:
        yield store


@pytest.fixture
def populated(store: Store) -> None:
    """The workloads and targets that trials of the tests are of are in `store`."""
    populate(store)
