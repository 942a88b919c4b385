"""Artefacts in the content cache, by their digest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.content_cache import ContentCache, cache_key
from compiler.errors import ArtefactError
from compiler.runtime.large_files import ChangedFileError, copy_file
from configs.private_folder import make_private


@dataclass(frozen=True, slots=True)
class KeptArtefact:
    """An artefact that was put into a cache: its digest, and the SHA-256 of the file's chunks."""

    digest: str
    chunks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Both as JSON values."""
        return {"digest": self.digest, "chunks": list(self.chunks)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> KeptArtefact:
        """The inverse of `to_json`; `KeyError`, `TypeError` or `ValueError` on other JSON."""
        digest, chunks = data["digest"], data["chunks"]
        if not all(isinstance(text, str) for text in (digest, *chunks)):
            raise ValueError("digests are text")
        return KeptArtefact(digest, tuple(chunks))


def keep_artefact(cache: ContentCache, output: Path, digest: str) -> KeptArtefact | None:
    """Copy an artefact into the cache; None if it cannot, or would fill more than half of it."""
    try:
        if output.stat().st_size > cache.most_bytes // 2:
            return None
        path = _path(cache, digest)
        make_private(path.parent)
        chunks = copy_file(output, path)
    except (OSError, ChangedFileError):
        return None
    cache.trim()
    return KeptArtefact(digest, chunks)


def place_artefact(cache: ContentCache, kept: KeptArtefact, output: Path) -> bool:
    """Copy an artefact from the cache; False if it is not there any more, or is damaged.

    Raises ArtefactError if `output` cannot be written.
    """
    path = _path(cache, kept.digest)
    try:
        copy_file(path, output, kept.chunks)
    except ChangedFileError:
        with suppress(OSError):
            path.unlink()
        return False
    except OSError as error:
        raise ArtefactError(f"cannot write {output}: {error.strerror or error}") from error
    with suppress(OSError):
        os.utime(path)  # what was used last stays
    return True


def _path(cache: ContentCache, digest: str) -> Path:
    return cache.path(cache_key("artefact", digest))
