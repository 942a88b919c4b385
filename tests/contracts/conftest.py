"""What contracts do quickly, since others test it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.db.ready_schema import ready_schema


@pytest.fixture(autouse=True, scope="module")
def without_migrations() -> Iterator[None]:
    """New databases are made without the migrations."""
    with ready_schema():
        yield
