"""The header of an artifact, and what is read without NumPy: its digest, and that of its parent."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from tunefarm.compiler.errors import ArtefactError
from tunefarm.configs.files import open_regular

FORMAT = 7
"""Format 1 had one variant, format 2 no seal, format 3 no buffers within inputs and outputs, format
4 no more than two variants, format 5 no variants but fallbacks of one, no dynamic shapes, no lists,
no functions and no branches, format 6 no constants that are repacked, and no parent. A file has the
first format that has what it needs, so that older versions read it."""
MAGIC = b"TUNEFARM"
HEADER = struct.Struct("<8sIIQQ32s")
"""Magic, format, zero, bytes of the manifest and of the file, SHA-256 of the manifest."""
_MADE_BY = "tune build makes one of a model; it is run from there"


@dataclass(frozen=True, slots=True)
class Lineage:
    """The SHA-256 of a manifest, which covers everything in the file; `built`: the same without the
    parent, equal for builds that are equal; and that of the parent's manifest, or ""."""

    digest: str
    built: str
    parent: str


def digest_of(path: str | PathLike[str]) -> str:
    """The SHA-256 of an artifact's manifest, in hex digits: it covers everything in the file.

    Raises `ArtefactError` when the file cannot be read or is no artifact.
    """
    return _read(Path(path), manifest=False)[1]


def lineage_of(path: str | PathLike[str]) -> Lineage:
    """An artifact's digests. Raises `ArtefactError` as `digest_of`, and for a damaged manifest."""
    version, digest, text = _read(Path(path), manifest=True)
    if version < FORMAT:
        return Lineage(digest, digest, "")
    if hashlib.sha256(text).hexdigest() != digest:
        raise ArtefactError(f"{path} is damaged: its manifest has changed")
    try:
        data = json.loads(text)
        parent = data.pop("parent", "")
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ArtefactError(f"{path} has a manifest that is not valid") from error
    if not is_parent(parent):
        raise ArtefactError(f"{path} has a manifest that is not valid: its parent is no SHA-256")
    return Lineage(digest, hashlib.sha256(json_text(data)).hexdigest(), parent)


def is_parent(value: object) -> bool:
    """Whether a manifest may name this as its parent; "" names none."""
    return isinstance(value, str) and re.fullmatch("(?:[0-9a-f]{64})?", value) is not None


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


def _read(path: Path, *, manifest: bool) -> tuple[int, str, bytes]:
    """A file's format, its digest and, if asked for, its manifest."""
    try:
        with open_regular(path) as file:
            head = file.read(HEADER.size)
            if len(head) < HEADER.size or not head.startswith(MAGIC):
                raise not_an_artefact(path)
            _, version, _, count, _, digest = HEADER.unpack(head)
            is_read = manifest and version >= FORMAT
            return version, digest.hex(), file.read(count) if is_read else b""
    except (OSError, OverflowError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtefactError(f"cannot read {path}: {reason}") from error
