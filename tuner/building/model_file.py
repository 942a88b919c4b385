"""A model's file, looked at by threads while their builder imports what it needs.

Imports little itself: a command begins with it before it reads its settings.
"""

from __future__ import annotations

import hashlib
import mmap
import threading
from collections.abc import Callable
from os import PathLike
from typing import Generic, TypeVar

from tunefarm.configs.regular_file import open_regular

# The key that every reference of an ONNX file to another file contains.
_REFERENCE = b"location"

Result = TypeVar("Result")


class Meanwhile(Generic[Result]):
    """A function that a thread of its own runs from now on, and what it returns or raises."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> Result:
        """What the function has returned. Raises what it has raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error


def begin_digest(path: str | PathLike[str]) -> Meanwhile[str | None]:
    """Begin `model_digest`, and look at this machine, which every build asks for."""

    def digest() -> str | None:
        found = model_digest(path)
        from tunefarm.compiler.target import host_target  # loading LLVM takes long

        host_target()
        return found

    return Meanwhile(digest)


def model_digest(path: str | PathLike[str]) -> str | None:
    """The SHA-256 of a model's file; None if it may refer to others, or cannot be read."""
    try:
        with (
            open_regular(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if content.find(_REFERENCE) >= 0:
                return None
            return hashlib.sha256(content).hexdigest()
    except (OSError, ValueError):
        return None
