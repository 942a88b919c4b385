"""The header of an artifact, and what is read without NumPy: its digest and its parents'."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.types.frozen import frozen
from tunefarm.configs.files import open_regular

FORMAT = 9
SUMMED = 8
REPACKED = 7
PROGRAMS = 6
LADDER = 5
TWO_VARIANTS = 4
OLDEST_FORMAT = 3
"""Format 1 had one variant, format 2 no seal, format 3 no buffers within inputs and outputs, format
4 no more than two variants, format 5 no variants but fallbacks of one, no dynamic shapes, no lists,
no functions and no branches, format 6 no repacked constants and no parents, format 7 no CRC-32 of
large constants, format 8 no filters that are transformed when a file is loaded. A file has the
first format that has what it needs, so that older versions read it."""
MAGIC = b"TUNEFARM"
HEADER = struct.Struct("<8sIIQQ32s")
"""Magic, format, zero, bytes of the manifest and of the file, SHA-256 of the manifest."""
MOST_PARENTS = 16
"""Of an artifact: as many builds back a rollback has the same bytes again."""
_MADE_BY = "tune build makes one of a model; it is run from there"


@frozen
class Lineage:
    """An artifact's digest, the SHA-256 of its manifest; those of the artifacts that it replaced,
    the newest first; and the rest of its manifest, which is the same for builds that are."""

    digest: str
    parents: tuple[str, ...]
    manifest: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The name of its model, "" if it has none."""
        try:
            return str(self.manifest["variants"][0]["name"])
        except (IndexError, KeyError, TypeError):
            return ""

    def digest_with(self, parents: Sequence[str]) -> str:
        """What the digest is with other parents."""
        return hashlib.sha256(json_text(with_parents(self.manifest, parents))).hexdigest()


def with_parents(manifest: Mapping[str, Any], parents: Sequence[str]) -> dict[str, Any]:
    """A manifest that has none, with the digests of these parents."""
    return {**manifest, **({"parents": list(parents)} if parents else {})}


def digest_of(path: str | PathLike[str]) -> str:
    """The SHA-256 of an artifact's manifest, in hex digits: it covers everything in the file.

    Raises `ArtefactError` when the file cannot be read or is no artifact.
    """
    return _read(Path(path), manifest=False)[0]


def lineage_of(path: str | PathLike[str]) -> Lineage:
    """An artifact's digests. Raises `ArtefactError` as `digest_of`, and for a damaged manifest."""
    digest, text = _read(Path(path), manifest=True)
    if hashlib.sha256(text).hexdigest() != digest:
        raise ArtefactError(f"{path} is damaged: its manifest has changed")
    try:
        manifest = json.loads(text)
        parents = manifest.pop("parents", [])
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ArtefactError(f"{path} has a manifest that is not valid") from error
    if not are_parents(parents):
        raise ArtefactError(f"{path} has a manifest that is not valid: its parents are none")
    return Lineage(digest, tuple(parents), manifest)


def are_parents(value: object) -> bool:
    """Whether a manifest may name these as its parents."""
    return (
        isinstance(value, list)
        and len(value) <= MOST_PARENTS
        and all(isinstance(item, str) and re.fullmatch("[0-9a-f]{64}", item) for item in value)
    )


def json_text(value: object) -> bytes:
    """JSON in the one form that artifacts have it in."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def not_an_artefact(path: Path) -> ArtefactError:
    """What else the file is, where that can be told."""
    from tunefarm.configs.file_kinds import kind_of  # what is right needs none of it

    kind = kind_of(path)
    if kind is None:
        return ArtefactError(f"{path} is not a tunefarm artifact", hint=_MADE_BY)
    description = kind.instead_of("an artifact of tune build")
    return ArtefactError(f"{path} is {description}", hint=kind.advice or _MADE_BY)


def _read(path: Path, *, manifest: bool) -> tuple[str, bytes]:
    """A file's digest and, if asked for, its manifest."""
    try:
        with open_regular(path) as file:
            head = file.read(HEADER.size)
            if len(head) < HEADER.size or not head.startswith(MAGIC):
                raise not_an_artefact(path)
            _, _, _, count, _, digest = HEADER.unpack(head)
            return digest.hex(), file.read(count) if manifest else b""
    except (OSError, OverflowError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtefactError(f"cannot read {path}: {reason}") from error
