"""What the tests of this folder do quickly, since others test it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.db.ready_schema import ready_schema
from tests.in_process_import import importing_in_process
from tests.known_kernels import known_kernels


@pytest.fixture(autouse=True, scope="module")
def without_processes_and_migrations(
    request: pytest.FixtureRequest, folder_of_the_run: Path
) -> Iterator[None]:
    """Models are read in this process, new databases are made without the migrations, and models
    are built of kernels that were compiled before, where the cache of kernels is not the point."""
    with importing_in_process(), ready_schema(), ExitStack() as stack:
        if request.path.stem != "test_cached_builds":
            stack.enter_context(known_kernels(folder_of_the_run))
        yield
