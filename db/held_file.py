"""A database file while it is open: whether its name still leads to it, and where it is if not.

SQLite goes on with a file that was renamed or deleted, and makes a new one under the name when it
is opened again. So the file is held by a connection of its own, which keeps its content readable
for as long as the process lives, and every transaction first looks whether the name leads to it.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import Connection

from tunefarm.configs.errors import DatabaseMovedError, DatabaseUnavailableError
from tunefarm.configs.files import new_file

_OPEN_FILES = Path("/proc/self/fd")  # proc_pid_fd(5)
_SAVED = ".saved"
_PRIVATE = 0o600


class HeldFile:
    """The file that `keeper`, a connection that does nothing else, has open under the name."""

    def __init__(self, name: Path, keeper: sqlite3.Connection) -> None:
        self._name = name
        self._path = Path(os.path.abspath(name))  # whatever folder the process changes to
        self._keeper = keeper
        keeper.isolation_level = None
        try:
            keeper.execute("PRAGMA schema_version").fetchone()  # opens a write-ahead log, too
            self._identity = _identity(self._path)
        except (OSError, sqlite3.Error) as error:
            keeper.close()
            raise DatabaseUnavailableError(f"{name}: {error}") from error

    def close(self) -> None:
        """Let go of the file."""
        self._keeper.close()

    def check(self, _connection: Connection | None = None) -> None:
        """Raises DatabaseMovedError if the name does not lead to the file any more."""
        if self._is_there():
            return
        place = self.place()
        if place is not None:
            raise DatabaseMovedError(
                f"{self._name} was renamed to {place} while it was in use",
                hint=f"its records are there: --db {shlex.quote(str(place))}",
            )
        raise DatabaseMovedError(f"{self._name} was {self._fate()} while it was in use")

    def place(self) -> Path | None:
        """Where the file is now, by another name of its own; None if it has none that is known."""
        with suppress(OSError):
            for link in _OPEN_FILES.iterdir():
                with suppress(OSError):
                    if _identity(link) == self._identity:
                        found = Path(os.readlink(link))
                        if _identity(found) == self._identity:
                            return self._as_typed(found)
        return None

    def complete(self) -> None:
        """Have everything in the file itself: a write-ahead log does not go where the file goes.

        Raises DatabaseUnavailableError if others read it now.
        """
        (busy, *_) = self._keeper.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise DatabaseUnavailableError(f"{self._name} was renamed, and its log is being read")

    def save(self) -> Path:
        """Copy what the file holds, which has no name any more, next to where it was.

        Nobody of this process may write to it meanwhile. Raises DatabaseUnavailableError if that
        cannot be done now; the file is held all the same.
        """
        if self._path.exists() and Path(f"{os.path.realpath(self._path)}-journal").exists():
            # which SQLite would take for a transaction of this file that was cut short
            raise DatabaseUnavailableError(f"{self._name} is another file, that is being written")
        reason = "no folder is there"
        for folder in self._folders():
            try:
                copy = new_file(folder, self._path.name, _SAVED)
                try:
                    copy.chmod(self._mode())
                    self._copy_to(copy)
                except BaseException:
                    copy.unlink(missing_ok=True)
                    raise
                return self._as_typed(copy)
            except OSError as error:
                reason = f"{folder}: {error.strerror or error}"
            except sqlite3.Error as error:
                reason = f"{folder}: {error}"
        raise DatabaseUnavailableError(
            f"{self._name} was {self._fate()}, and its records cannot be saved in {reason}"
        )

    def story(self, copy: Path) -> str:
        """What became of the file, and what to type so that the records of its copy are under its
        name again."""
        name, saved = shlex.quote(str(self._name)), shlex.quote(str(copy))
        again = f"mv {saved} {name}"
        if self._path.exists():
            again = f"tune db merge {saved} --db {name}"
        text = f"{self._name} was {self._fate()} while it was in use: its records are saved in"
        return f"{text} {copy}; to have them back: {again}"

    def _copy_to(self, copy: Path) -> None:
        with closing(sqlite3.connect(copy)) as target:
            self._keeper.backup(target)

    def _mode(self) -> int:
        """Who may read and write the file."""
        for link in _OPEN_FILES.iterdir():
            with suppress(OSError):
                if _identity(link) == self._identity:
                    return stat.S_IMODE(link.stat().st_mode)
        return _PRIVATE

    def _is_there(self) -> bool:
        try:
            return _identity(self._path) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # it cannot be seen now, and SQLite says why

    def _fate(self) -> str:
        return "replaced by another file" if self._path.exists() else "deleted"

    def _folders(self) -> Iterator[Path]:
        """Where the copy may go: where the file was, or above, as far as that is there."""
        yield from (folder for folder in self._path.parents if folder.is_dir())
        yield Path(tempfile.gettempdir())

    def _as_typed(self, found: Path) -> Path:
        """Relative where the name was, if it is in the same folder."""
        with suppress(OSError):
            if os.path.samefile(self._name.parent, found.parent):
                return self._name.with_name(found.name)
        return found


def _identity(path: Path) -> tuple[int, int]:
    """What SQLite, too, knows a file by (os_unix.c, fileHasMoved)."""
    status = path.stat()
    return status.st_dev, status.st_ino
