"""Large files: written piece by piece by two threads, and copied and hashed at the same time."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import get_ident

from tunefarm.compiler.runtime.machine.in_threads import in_threads

CHUNK_BYTES = 4 << 20


class ChangedFileError(Exception):
    """The file to copy cannot be read, or is not the one that was expected."""


def reserve(file: int, size: int) -> None:
    """Give an open file its size. Raises OSError, also if the disk is too full for it.

    Replacing another file with it need not wait for the disk then: ext4 writes a new file that has
    no blocks yet when it takes the place of another one.
    """
    if size == 0:
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not on this file system
            raise
        os.ftruncate(file, size)


def write_at(file: int, data: bytes | memoryview, start: int) -> None:
    """Write all of `data` into an open file. Raises OSError."""
    rest = memoryview(data).cast("B")
    while rest:
        count = os.pwrite(file, rest, start)
        rest, start = rest[count:], start + count


def write_pieces(
    file: int,
    pieces: Sequence[tuple[bytes | memoryview, int]],
    written: Callable[[int], None] = lambda count: None,
) -> None:
    """Write pieces that do not overlap at their places into an open file. Raises OSError.

    They are put together to chunks that begin at multiples of their size: what a system then keeps
    of the file in memory lies in large pages, and weights that are mapped there are read faster.
    `written` is called with so many bytes as soon as these are.
    """
    chunks: dict[int, list[tuple[int, memoryview]]] = {}
    for content, place in pieces:
        data = memoryview(content).cast("B")
        while data:
            number, start = divmod(place, CHUNK_BYTES)
            part, data = data[: CHUNK_BYTES - start], data[CHUNK_BYTES - start :]
            chunks.setdefault(number, []).append((start, part))
            place += len(part)

    def write(number: int) -> None:
        chunk = bytearray(max(start + len(part) for start, part in chunks[number]))
        for start, part in chunks[number]:
            chunk[start : start + len(part)] = part
        write_at(file, memoryview(chunk), number * CHUNK_BYTES)
        written(len(chunk))

    in_threads(write, sorted(chunks))


def copy_file(source: Path, target: Path, expected: Sequence[str] | None = None) -> tuple[str, ...]:
    """Copy a file; the SHA-256 of each chunk, in hex digits. `target` is replaced in the end.

    Raises ChangedFileError if `source` cannot be read or has other chunks than `expected`, OSError
    if `target` cannot be written; what was there is left as it was then.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{get_ident()}")
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
        reserve(writer, size)

        def copy(start: int) -> str:
            chunk = _read_at(reader, min(CHUNK_BYTES, size - start), start)
            digest = hashlib.sha256(chunk).hexdigest()
            write_at(writer, chunk, start)
            return digest

        return tuple(in_threads(copy, range(0, size, CHUNK_BYTES)))
    finally:
        os.close(reader)


def _read_at(file: int, count: int, start: int) -> bytes:
    try:
        chunk = os.pread(file, count, start)
    except OSError as error:
        raise ChangedFileError(f"the file cannot be read: {error.strerror}") from error
    if len(chunk) != count:
        raise ChangedFileError("the file has become shorter")
    return chunk
