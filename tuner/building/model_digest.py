"""The SHA-256 of a model's file, from a thread that begins at once."""

from __future__ import annotations

import hashlib
import mmap
import threading
from os import PathLike

from configs.regular_file import open_regular

# The key that every reference of an ONNX file to another file contains.
_REFERENCE = b"location"


def file_digest(path: str | PathLike[str]) -> str | None:
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


class ModelDigest:
    """`file_digest` of a model, computed while others read settings and import what they need."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._digest: str | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def result(self) -> str | None:
        """The digest, or None as of `file_digest`."""
        self._thread.join()
        return self._digest

    def _work(self) -> None:
        self._digest = file_digest(self._path)
        from compiler.target import host_target  # every build asks; loading LLVM takes long

        host_target()
