"""Copies of large files, hashed on the way by two threads: reading, hashing and writing release the
interpreter lock."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

CHUNK_BYTES = 4 << 20
_THREADS = 2


class ChangedFileError(Exception):
    """The file to copy cannot be read, or is not the one that was expected."""


def copy_file(source: Path, target: Path, expected: Sequence[str] | None = None) -> tuple[str, ...]:
    """Copy a file; the SHA-256 of each chunk, in hex digits. `target` is replaced in the end.

    Raises ChangedFileError if `source` cannot be read or has other chunks than `expected`, OSError
    if `target` cannot be written; what was there is left as it was then.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", buffering=0) as file:
            digests = _copy_chunks(source, file.fileno())
        if expected is not None and digests != tuple(expected):
            raise ChangedFileError(f"{source} has changed")
        os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return digests


def _copy_chunks(source: Path, writer: int) -> tuple[str, ...]:
    try:
        reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ChangedFileError(f"cannot read {source}: {error.strerror}") from error
    try:
        size = os.fstat(reader).st_size
        if size:
            _reserve(writer, size)
        copy = _Copy(reader, writer, size)
        helpers = [threading.Thread(target=copy.work) for _ in range(_THREADS - 1)]
        for helper in helpers:
            helper.start()
        copy.work()
        for helper in helpers:
            helper.join()
    finally:
        os.close(reader)
    if copy.problem is not None:
        raise copy.problem
    return tuple(copy.digests)


def _reserve(file: int, size: int) -> None:
    """Find out now if the disk is too full; and replacing a file need not wait for the disk then
    (ext4 writes a new file that has no blocks yet when it takes the place of another one)."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not on this file system
            raise


class _Copy:
    """A copy that several threads work at, each on the next chunk that nobody has begun."""

    def __init__(self, reader: int, writer: int, size: int) -> None:
        self.problem: Exception | None = None
        starts = range(0, size, CHUNK_BYTES)
        self.digests = [""] * len(starts)
        self._reader, self._writer, self._size = reader, writer, size
        self._waiting: Iterator[tuple[int, int]] = enumerate(starts)
        self._lock = threading.Lock()

    def work(self) -> None:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, self._size)))
        try:
            while self.problem is None:
                with self._lock:
                    number, start = next(self._waiting, (-1, 0))
                if number < 0:
                    return
                chunk = buffer[: self._size - start]
                self._read(chunk, start)
                self.digests[number] = hashlib.sha256(chunk).hexdigest()
                self._write(chunk, start)
        except (OSError, ChangedFileError) as error:
            self.problem = error

    def _read(self, chunk: memoryview, start: int) -> None:
        try:
            count = os.preadv(self._reader, [chunk], start)
        except OSError as error:
            raise ChangedFileError(f"the file cannot be read: {error.strerror}") from error
        if count != len(chunk):
            raise ChangedFileError("the file has become shorter")

    def _write(self, chunk: memoryview, start: int) -> None:
        while chunk:
            count = os.pwrite(self._writer, chunk, start)
            chunk, start = chunk[count:], start + count
