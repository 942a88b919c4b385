"""Artefacts whose manifests were edited, with every hash made right again."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunefarm.compiler.runtime.artefact.file_header import MAGIC, json_text
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT

_HEADER_BYTES = 64


def manifest_text(contents: bytes) -> bytes:
    """The manifest of an artefact."""
    size: int = struct.unpack_from("<Q", contents, 16)[0]
    return contents[_HEADER_BYTES : _HEADER_BYTES + size]


def data_start(contents: bytes) -> int:
    """Where the parts begin."""
    return _aligned(_HEADER_BYTES + len(manifest_text(contents)))


def with_manifest(contents: bytes, text: bytes) -> bytes:
    """The artefact with another manifest, and a header that fits it."""
    body = text + bytes(_aligned(_HEADER_BYTES + len(text)) - _HEADER_BYTES - len(text))
    body += contents[data_start(contents) :]
    end = _HEADER_BYTES + len(body)
    digest = hashlib.sha256(text).digest()
    (version,) = struct.unpack_from("<I", contents, 8)
    return struct.pack("<8sIIQQ32s", MAGIC, version, 0, len(text), end, digest) + body


def rewrite_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of the file, which is JSON, as tunefarm would write it."""
    contents = path.read_bytes()
    manifest = json.loads(manifest_text(contents))
    change(manifest)
    path.write_bytes(with_manifest(contents, json_text(manifest)))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
