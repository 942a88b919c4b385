"""Files that appear at once or not at all; and files that others name: regular ones only, opened
without ever waiting.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_numbers = itertools.count()


@contextmanager
def replacing(path: str | os.PathLike[str], *, new: bool = False) -> Iterator[Path]:
    """A path to write to; when the block ends well, that file takes the place of `path`.

    A link is followed, and the permissions of a file that is replaced are kept. However else the
    block ends, what was there stays and nothing else is left. With `new` there must be no file
    yet, else FileExistsError is raised. Raises OSError.
    """
    target = Path(os.path.realpath(path))
    if new and target.exists():
        raise FileExistsError(f"{path} exists already")
    unfinished = target.with_name(f".tunefarm-{os.getpid()}-{next(_numbers)}")
    try:
        yield unfinished
        if target.exists():
            unfinished.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(unfinished, target)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, as UTF-8, that takes the place of `path` at once. Raises OSError."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def new_file(folder: Path, stem: str, suffix: str) -> Path:
    """An empty file that was not there: `STEMSUFFIX`, or `STEM.1SUFFIX` and so on if that is taken.

    Raises OSError.
    """
    for number in itertools.count():
        path = folder / f"{stem}{f'.{number}' if number else ''}{suffix}"
        with suppress(FileExistsError):
            path.touch(exist_ok=False)
            return path
    raise AssertionError("names do not end")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read it. Raises OSError, also for folders, pipes, sockets and devices.

    Opening a FIFO would wait for a writer, and a device may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """The contents of a regular file. Raises OSError as `open_regular`, and for one that has more
    than `most` bytes or changes its size meanwhile."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and {most} are allowed")
        content = file.read(size)
        if len(content) != size or file.read(1):
            raise OSError(errno.EIO, "it changed while it was read")
        return content
