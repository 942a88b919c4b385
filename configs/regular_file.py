"""Files that others name are opened here: regular ones only, without ever waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


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


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise OSError, as `open_regular` does, for what a library is about to open by its name."""
    open_regular(Path(path)).close()
