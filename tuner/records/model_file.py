"""Whether a model's file is still the one that a job has read."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.configs.regular_file import open_regular

if TYPE_CHECKING:
    from tunefarm.db.records import JobRecord

_KEY = "model_file"
_EXTERNAL = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])", re.DOTALL)
"""How a reference to a file of external data is encoded: its key, then the length of the name."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model's path and what was in it: the SHA-256 of the file, and of the names, sizes and times
    of the files of its external data, which are too large to be read twice."""

    path: str
    digest: str

    @staticmethod
    def of(path: str | os.PathLike[str]) -> ModelFile | None:
        """The file as it is; None for one that cannot be read."""
        try:
            with (
                open_regular(path) as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                digest = hashlib.sha256(content)
                names = {
                    content[found.end() : found.end() + found[1][0]]
                    for found in _EXTERNAL.finditer(content)
                }
        except (OSError, ValueError):
            return None
        for name in sorted(names):
            digest.update(name + _stamp(Path(path).parent / os.fsdecode(name)))
        return ModelFile(os.path.abspath(path), digest.hexdigest())

    @property
    def is_unchanged(self) -> bool:
        """Whether the path has the same still."""
        return ModelFile.of(self.path) == self

    def kept_in(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a job, as JSON values, with the file among them."""
        return {**settings, _KEY: {"path": self.path, "digest": self.digest}}

    @staticmethod
    def of_job(job: JobRecord) -> ModelFile | None:
        """The file that a job read; None of a job of an older version."""
        found = job.settings.get(_KEY) if isinstance(job.settings, Mapping) else None
        if not isinstance(found, Mapping):
            return None
        return ModelFile(str(found.get("path", "")), str(found.get("digest", "")))


def _stamp(path: Path) -> bytes:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return b"\0missing\0"
    return f"\0{status.st_size} {status.st_mtime_ns}\0".encode()
