"""Files that appear at once or not at all."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
            shutil.copymode(target, unfinished)
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
