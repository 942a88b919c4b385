"""Content cache: results of the compiler that are found by everything that they were made from.

A key is a SHA-256 of the inputs and of the compiler itself (its source files and LLVM's version),
so an entry is never out of date. Entries are files in a folder that any number of this user's
processes may share; each has the SHA-256 of its key and contents, and one that is damaged, belongs
to another key or that others may have written counts as missing. When the folder grows beyond its
limit, what was not used for longest goes.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tunefarm.compiler.target import llvm_version
from tunefarm.configs.private_folder import is_own, make_private, writable_by_others

MOST_BYTES = 1 << 30
NOT_WHAT_WAS_KEPT = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""What reading facts raises that are JSON, but not of the form that was kept."""
_DIGEST_BYTES = 32
_SUFFIX = ".entry"
_UNFINISHED = f"{_SUFFIX}.new"  # what a process that was killed leaves behind goes in its turn


class ContentCache:
    """A folder of entries. One that cannot be written or read is no error: nothing is found.

    Neither is one that others may write to, since entries hold code.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes

    def path(self, key: str) -> Path:
        """Where the entry is, if there is one."""
        return self.folder / key[:2] / f"{key[2:]}{_SUFFIX}"

    def find(self, key: str) -> tuple[Any, bytes] | None:
        """An entry's facts (a JSON value) and bytes; None if there is none or it is damaged."""
        path = self.path(key)
        content = _read_own(path)
        if content is None:
            return None
        with suppress(OSError):  # root's entry serves as well
            os.utime(path)
        body = content[_DIGEST_BYTES:]
        if _digest(key, body) != content[:_DIGEST_BYTES]:
            return None
        head, _, data = body.partition(b"\n")
        try:
            return json.loads(head), data
        except (ValueError, RecursionError):
            return None

    def add(self, key: str, facts: Any, data: bytes = b"") -> None:
        """Keep facts and bytes under a key, if the folder can be written."""
        path = self.path(key)
        body = json.dumps(facts).encode() + b"\n" + data
        temporary = ""
        try:
            make_private(path.parent)
            if writable_by_others(path.parent):
                return
            handle, temporary = tempfile.mkstemp(_UNFINISHED, dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(key, body) + body)
            os.replace(temporary, path)
        except OSError:
            if temporary:
                with suppress(OSError):
                    os.unlink(temporary)

    def trim(self) -> None:
        """Remove the entries that were not used for longest while there are too many bytes."""
        try:
            entries = [(path, path.stat()) for path in self.folder.glob(f"??/*{_SUFFIX}*")]
        except OSError:
            return
        total = sum(entry.st_size for _, entry in entries)
        for path, entry in sorted(entries, key=lambda item: item[1].st_mtime):
            if total <= self.most_bytes:
                return
            with suppress(OSError):
                path.unlink()
            total -= entry.st_size


def _digest(key: str, body: bytes) -> bytes:
    """What an entry begins with."""
    return hashlib.sha256(f"{key}\n".encode() + body).digest()


def _read_own(path: Path) -> bytes | None:
    """A file that nobody but this user and root can have written; None if it is not there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or not is_own(status):
            return None
        if writable_by_others(path.parent):
            return None
        with os.fdopen(file, "rb", closefd=False) as entry:
            return entry.read()
    except OSError:
        return None
    finally:
        os.close(file)


def cache_key(*parts: object) -> str:
    """The key of what this version of the compiler makes from `parts` (JSON values)."""
    text = json.dumps([compiler_digest(), *parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def compiler_digest() -> str:
    """What compiles: this package's source files and LLVM."""
    return source_digest(Path(__file__).parent, llvm_version())


def source_digest(folder: Path, *others: str) -> str:
    """The SHA-256 of a package's source files, and of whatever else decides what they do."""
    digest = hashlib.sha256("\0".join(others).encode())
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"\0{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
