"""The records that a build is made from."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from configs.errors import SettingsError

if TYPE_CHECKING:
    from db.store import Store


def open_records(url: str, *, untuned: bool) -> AbstractContextManager[Store | None]:
    """The database to build from, open for reading; None for untuned builds.

    Raises DatabaseError, and SettingsError for a file that is not there.
    """
    if untuned:
        return nullcontext()
    if not os.path.exists(url) and "://" not in url:
        raise SettingsError(
            f"no such database: {url}", hint="tune --model makes one; --untuned builds without"
        )
    from db.store import Store

    return Store.open(url, create=False, read_only=True)
