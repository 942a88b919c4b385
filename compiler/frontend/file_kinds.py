"""What a file is that is no ONNX model, by how it begins, and what to do with it.

One table for models and for the files of their external data.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HEAD_BYTES = 1024
"""How much of a file's beginning is looked at."""

_LFS = b"version https://git-lfs.github.com/spec/"
_EXPORT = "export the model to ONNX, with torch.onnx.export for example"


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is, with its article, and what its user does next."""

    what: str
    advice: str


def _begins(*starts: bytes, at: int = 0) -> Callable[[bytes], bool]:
    return lambda head: any(head[at : at + len(start)] == start for start in starts)


def _has_text(*words: bytes) -> Callable[[bytes], bool]:
    """Whether a text begins with one of these, in capital or small letters, behind white space."""
    return lambda head: head.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(words)


def _is_safetensors(head: bytes) -> bool:
    return head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32


def _is_openvino(head: bytes) -> bool:
    return head.lstrip().startswith(b"<") and b"<net" in head


_KINDS: tuple[tuple[Callable[[bytes], bool], FileKind], ...] = (
    (
        _begins(_LFS),
        FileKind("a Git LFS pointer and not the file itself", "fetch it: git lfs pull"),
    ),
    (_begins(b"\x1f\x8b"), FileKind("compressed with gzip", "decompress it: gunzip")),
    (_begins(b"BZh"), FileKind("compressed with bzip2", "decompress it: bunzip2")),
    (_begins(b"\xfd7zXZ\0"), FileKind("compressed with xz", "decompress it: unxz")),
    (_begins(b"\x28\xb5\x2f\xfd"), FileKind("compressed with zstd", "decompress it: unzstd")),
    (_begins(b"7z\xbc\xaf\x27\x1c"), FileKind("a 7-Zip archive", "extract the model from it")),
    (_begins(b"ustar", at=257), FileKind("a tar archive", "extract the model from it: tar -xf")),
    (_begins(b"TUNEFARM"), FileKind("a model that tunefarm has built", "run it: tune run FILE")),
    (_begins(b"SQLite format 3\0"), FileKind("an SQLite database", "name it with --db")),
    (_begins(b"GGUF"), FileKind("a GGUF model, of llama.cpp", _EXPORT)),
    (_begins(b"TFL3", at=4), FileKind("a TensorFlow Lite model", "convert it to ONNX: tf2onnx")),
    (
        _begins(b"ORTM", at=4),
        FileKind("a model in onnxruntime's own format", "give its .onnx file"),
    ),
    (_begins(b"\x89HDF"), FileKind("an HDF5 file, as Keras writes", "convert it to ONNX: tf2onnx")),
    (_begins(b"\x7fELF"), FileKind("a program or a library", "give the model that it runs")),
    (_is_safetensors, FileKind("a file of weights alone, in safetensors", _EXPORT)),
    (
        lambda head: head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5",
        FileKind("a pickle, as PyTorch writes", _EXPORT),
    ),
    (
        _has_text(b"<!doctype html", b"<html"),
        FileKind("an HTML page, perhaps of an error or a login", "download the file again"),
    ),
    (_is_openvino, FileKind("an OpenVINO model", "give the ONNX file that it was made of")),
    (_has_text(b"<?xml"), FileKind("XML text", "give the model")),
    (_has_text(b'{"', b"{\n", b"{\r", b"[", b"{ "), FileKind("JSON text", "give the model")),
)


def kind_of_file(path: Path, head: bytes) -> FileKind | None:
    """What a file is whose first bytes are `head`; None if nothing is known of it."""
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return _kind_of_zip(path)
    return next((kind for matches, kind in _KINDS if matches(head)), None)


def _kind_of_zip(path: Path) -> FileKind:
    """A zip file is what its members say. Nothing is extracted."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return FileKind("a zip archive that is cut off or damaged", "download it again")
    if any(name.endswith(("/constants.pkl", "/code/__torch__.py")) for name in names):
        return FileKind("a TorchScript model", _EXPORT)
    if any(name.endswith("data.pkl") for name in names):
        return FileKind("a file of PyTorch's weights", _EXPORT)
    if names and all(name.endswith(".npy") for name in names):
        return FileKind("an archive of NumPy arrays", "name it with --input or --calibration")
    models = [name for name in names if name.endswith(".onnx")]
    return FileKind("a zip archive", f"extract {models[0] if models else 'the model'} from it")
