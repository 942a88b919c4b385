"""What the tests of this folder do quickly, since others test it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.db.ready_schema import ready_schema
from tests.in_process_import import importing_in_process


@pytest.fixture(autouse=True, scope="module")
def without_processes_and_migrations() -> Iterator[None]:
    """Models are read in this process, and new databases are made without the migrations."""
    with importing_in_process(), ready_schema():
        yield
