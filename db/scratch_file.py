"""SQLite files that are written once and take their place when they are whole."""

from __future__ import annotations

import sqlite3
from typing import Any


class ScratchConnection(sqlite3.Connection):
    """A connection that leaves it to the machine when its writes reach the disk.

    For files that nobody needs before they are whole: a power cut may damage them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA synchronous = OFF")
        self.execute("PRAGMA journal_mode = MEMORY")
