"""What the tests of databases do quickly, but those of migrations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.db.ready_schema import ready_schema

_OF_MIGRATIONS = {"test_migrations", "test_ready_schema", "test_upgrade"}


@pytest.fixture(autouse=True, scope="module")
def without_migrations(request: pytest.FixtureRequest) -> Iterator[None]:
    """New databases are made without the migrations."""
    if request.path.stem in _OF_MIGRATIONS:
        yield
        return
    with ready_schema():
        yield
