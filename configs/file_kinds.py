"""What a file is that is not what was expected, told by its contents: one table for all readers.

    model.onnx is a Git LFS pointer, not an ONNX model (git lfs pull fetches the file)
    model.pt is a PyTorch file, not an ONNX model (torch.onnx.export(…) in Python writes …)

A reader asks once it has failed, so that a file that it can read is never refused for its looks.
"""

from __future__ import annotations

import codecs
import mmap
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from tunefarm.configs.files import open_regular

_HEAD_BYTES = 4096
_SHOWN_CHARACTERS = 40  # of a text file's beginning
_SHOWN_FILES = 3  # of a folder
_FILE = "FILE"
"""Stands in an advice for the file's name, as a shell reads it."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file, as a noun with its article, and what to do about it.

    `advice` is for somebody who gave it as a model. A stand-in is text instead of a file
    that was not fetched; it is never the contents of anything. `says_all` is of what is wrong
    whatever was expected, `is_model` of an ONNX model.
    """

    what: str
    advice: str = ""
    is_stand_in: bool = False
    says_all: bool = False
    is_model: bool = False

    def instead_of(self, wanted: str) -> str:
        """What is said of a file that was to be `wanted`: "a gzip file, not an ONNX model"."""
        return self.what if self.says_all else f"{self.what}, not {wanted}"


_EXPORT = "export the model that it was made from to ONNX"
_LFS = FileKind("a Git LFS pointer", "git lfs pull fetches the file", is_stand_in=True)
_ANNEX = FileKind("a git-annex pointer", "git annex get FILE fetches the file", is_stand_in=True)
_HTML = FileKind(
    "an HTML page",
    "download the file itself again; its address may need a login, or a raw or resolve link",
    is_stand_in=True,
)
_ZIP = FileKind("a zip archive", "unzip FILE, and give the .onnx file in it")
_PYTORCH = FileKind(
    "a PyTorch file", "torch.onnx.export(model, …) in Python writes an ONNX file of the model"
)
_TORCHSCRIPT = FileKind(
    "a TorchScript file",
    "torch.onnx.export of the Python model that it was made from writes an ONNX file",
)
_SAVED_MODEL = FileKind(
    "a TensorFlow SavedModel",
    "python -m tf2onnx.convert --saved-model ITS_FOLDER --output model.onnx",
)
_GRAPH_DEF = FileKind(
    "a TensorFlow graph (GraphDef)",
    "python -m tf2onnx.convert --graphdef FILE --inputs … --outputs … --output model.onnx",
)
_TFLITE = FileKind(
    "a TensorFlow Lite model", "python -m tf2onnx.convert --tflite FILE --output model.onnx"
)
_KERAS = FileKind("a Keras model", "model.export(…, format='onnx') of Keras writes an ONNX file")
_ARTEFACT = FileKind("an artifact of tune build", "tune run FILE runs it")
_RECORDS = FileKind("an export of tuning records", "tune db import FILE takes it")
_DATABASE = FileKind("an SQLite database", "--db and tune db merge take a tuning database")
_ONNX = FileKind("an ONNX model", "tune build FILE --output … compiles it", is_model=True)
_ONNX_TEXT = "onnx.save(onnx.load(FILE, format='{}'), 'model.onnx') in Python makes a binary one"

_SIGNATURES: tuple[tuple[bytes, int, FileKind], ...] = (
    (b"version https://git-lfs.github.com/spec/", 0, _LFS),
    (b"version https://hawser.github.com/spec/", 0, _LFS),
    (b"/annex/objects/", 0, _ANNEX),
    (b"TUNEFARM", 0, _ARTEFACT),
    (b"SQLite format 3\0", 0, _DATABASE),
    (b"\x1f\x8b\x08", 0, FileKind("a gzip file", "gunzip < FILE > NEW unpacks it")),
    (b"\xfd7zXZ\0", 0, FileKind("an xz file", "xz -dc FILE > NEW unpacks it")),
    (b"\x28\xb5\x2f\xfd", 0, FileKind("a zstd file", "zstd -dc FILE > NEW unpacks it")),
    (b"\x04\x22\x4d\x18", 0, FileKind("an lz4 file", "lz4 -dc FILE > NEW unpacks it")),
    (b"1AY&SY", 4, FileKind("a bzip2 file", "bunzip2 < FILE > NEW unpacks it")),
    (b"7z\xbc\xaf\x27\x1c", 0, FileKind("a 7z archive", "7z x FILE, and give the .onnx in it")),
    (b"Rar!\x1a\x07", 0, FileKind("a RAR archive", "unrar x FILE, and give the .onnx in it")),
    (b"ustar", 257, FileKind("a tar archive", "tar xf FILE, and give the .onnx file in it")),
    (b"PK\x03\x04", 0, _ZIP),
    (b"PK\x05\x06", 0, FileKind("an empty zip archive")),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", 0, _PYTORCH),  # torch.save before 1.6
    (b"\x89HDF\r\n\x1a\n", 0, FileKind("an HDF5 file, as of Keras", _KERAS.advice)),
    (b"TFL3", 4, _TFLITE),
    (b"ORTM", 4, FileKind("a model in onnxruntime's own format (ORT)", f"{_EXPORT} again")),
    (b"GGUF", 0, FileKind("a GGUF file of llama.cpp", _EXPORT)),
    (b"ptrt", 0, FileKind("a TensorRT engine", _EXPORT)),
    (b"ftrt", 0, FileKind("a TensorRT engine", _EXPORT)),
    (b"\x93NUMPY", 0, FileKind("a NumPy array")),
    (b"\x7fELF", 0, FileKind("a program or shared library (ELF)")),
    (b"%PDF-", 0, FileKind("a PDF document")),
    *((b"\x80%c\x95" % version, 0, FileKind("a Python pickle", _EXPORT)) for version in (4, 5)),
    *((b"\x80%c" % version, 0, FileKind("a Python pickle", _EXPORT)) for version in (2, 3)),
)
"""The bytes, where they stand, and what begins so; the first that fits counts."""

_BY_NAME: Mapping[str, FileKind] = {
    ".mlmodel": FileKind("a Core ML model", _EXPORT),
    ".pdmodel": FileKind("a PaddlePaddle model", "paddle2onnx --model_dir … makes an ONNX file"),
    ".caffemodel": FileKind("a Caffe model", _EXPORT),
    ".engine": FileKind("a TensorRT engine", _EXPORT),
}
"""By the ending of its name, where the contents say nothing."""

_WEIGHTS_FOLDER = ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json")
WIRE_BYTES = 2
"""The wire type of protocol buffers that strings, bytes and messages have."""
_VARINT, _FIXED_BYTES = 0, {1: 8, 5: 4}  # others
_VARINT_BYTES = 10  # at most
_MOST_FIELDS = 64  # looked at; a model has its graph among the first
_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""The wire types of the fields of ONNX's ModelProto, by number."""
_GRAPH = 7
_TENSORFLOW_OPERATORS = (b"Placeholder", b"Const")


def kind_of(path: str | os.PathLike[str]) -> FileKind | None:
    """What is at a path, with the advice for this very file; None if nothing is known of it.

    Only reads, and never waits. An ONNX model is recognised as well, also one that is cut off.
    """
    name = os.fspath(path)
    try:
        found = _kind(Path(name))
    except (OSError, ValueError):
        return None
    if found is None:
        return None
    advice = found.advice.replace(_FILE, shlex.quote(name))
    return replace(found, advice=advice)


def is_onnx(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the outermost fields of an ONNX model, whatever its name."""
    kind = kind_of(path)
    return kind is not None and kind.is_model


def stand_in(head: bytes) -> FileKind | None:
    """The stand-in that the first bytes of a file are of; None for anything else."""
    found = _by_signature(head) or _text_kind(head)
    return found if found is not None and found.is_stand_in else None


def _kind(path: Path) -> FileKind | None:
    if not path.exists():
        return _missing(path)
    if path.is_dir():
        return FileKind("a folder", _in_folder(path))
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD_BYTES)
        if not head:
            return FileKind("empty", "fetch or export it again", says_all=True)
        if not head.strip(b"\0"):
            advice = "an unfinished download? fetch it again"
            return FileKind("a file that begins with zeros", advice, says_all=True)
        found = _by_signature(head)
        if found is _ZIP:
            return _zip_kind(path)
        return (
            found
            or _safetensors(head, size)
            or _protobuf_kind(file, head, size)
            or _text_kind(head)
            or _BY_NAME.get(path.suffix.lower())
        )


def _missing(path: Path) -> FileKind | None:
    """Why there is no file, where something is in its place; None if nothing is."""
    if path.is_symlink():
        target = os.readlink(path)
        advice = "fetch it again"
        if ".git/annex" in target:
            advice = _ANNEX.advice
        elif ".dvc" in target:
            advice = "dvc checkout FILE, or dvc pull, fetches it"
        return FileKind(f"a link to {target}, which is not there", advice, says_all=True)
    if Path(f"{path}.dvc").exists():
        advice = "dvc pull FILE fetches it"
        return FileKind("not there, only its .dvc file", advice, says_all=True)
    return None


def _in_folder(path: Path) -> str:
    """What to give instead of a folder."""
    if (path / "saved_model.pb").is_file():
        folder = shlex.quote(str(path))
        return f"python -m tf2onnx.convert --saved-model {folder} --output model.onnx"
    models = sorted([*path.glob("*.onnx"), *path.glob("*/*.onnx")])
    if models:
        names = ", ".join(str(model) for model in models[:_SHOWN_FILES])
        more = len(models) - _SHOWN_FILES
        return f"give the file: {names}{f' or {more} more' if more > 0 else ''}"
    if any((path / name).is_file() for name in _WEIGHTS_FOLDER):
        return f"optimum-cli export onnx --model {shlex.quote(str(path))} FOLDER"
    return "give the ONNX file itself; there is none in it"


def _by_signature(head: bytes) -> FileKind | None:
    return next((kind for text, at, kind in _SIGNATURES if head.startswith(text, at)), None)


def _zip_kind(path: Path) -> FileKind:
    import zipfile  # only here

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError):
        return FileKind("a zip archive that is damaged or cut off", "fetch it again")
    inner = {name.partition("/")[2] for name in names}
    if "data.pkl" in inner:
        return _TORCHSCRIPT if any(n.startswith("code/") for n in inner) else _PYTORCH
    if inner & {"archive_format", "archive_version"} or "serialized_exported_program.json" in names:
        return FileKind("a program of torch.export", "torch.onnx.export(program) makes a model")
    if "model.weights.h5" in names:
        return _KERAS
    models = [name for name in names if name.endswith(".onnx")]
    if models:
        return FileKind(_ZIP.what, f"unzip FILE; the model in it is {_shown(models[0])}")
    if names and all(name.endswith(".npy") for name in names):
        return FileKind("a file of NumPy arrays (.npz)")
    return _ZIP


def _safetensors(head: bytes, size: int) -> FileKind | None:
    """Eight bytes of a length, and a JSON object of that length."""
    if head[8:10] in (b'{"', b"{}", b"{ ") and 2 <= int.from_bytes(head[:8], "little") <= size - 8:
        advice = "it has no network: optimum-cli export onnx --model ITS_FOLDER FOLDER"
        return FileKind("a safetensors file of weights", advice)
    return None


def _protobuf_kind(file: BinaryIO, head: bytes, size: int) -> FileKind | None:
    """An ONNX model or one of TensorFlow, by its outermost fields."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        fields = list(islice(wire_fields(data, 0, size), _MOST_FIELDS))
    numbers = [field.number for field in fields]
    if not fields:
        return None
    if numbers[:2] == [1, 2] and set(numbers) == {1, 2} and _holds_message(head, fields[1]):
        return _SAVED_MODEL
    if numbers[0] == 1 and fields[0].wire == WIRE_BYTES:
        return _GRAPH_DEF if any(name in head for name in _TENSORFLOW_OPERATORS) else None
    if _GRAPH not in numbers or any(_MODEL_FIELDS.get(f.number) != f.wire for f in fields):
        return None
    if (end := fields[-1].end) > size:
        what = f"an ONNX model that is cut off at {size} of at least {end} bytes"
        return FileKind(what, "fetch or export it again", says_all=True)
    return _ONNX


@dataclass(frozen=True, slots=True)
class WireField:
    """A field of a protocol buffer: its number and wire type, where it begins, and from where to
    where its value is."""

    number: int
    wire: int
    begin: int
    start: int
    end: int


def wire_fields(data: mmap.mmap | memoryview, begin: int, end: int) -> Iterator[WireField]:
    """The fields of a message between two places, up to what is none; the last one may be cut off,
    and says that it ends behind the message."""
    while begin < end:
        try:
            tag, start = _varint(data, begin)
            number, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                _, after = _varint(data, start)
            elif wire == WIRE_BYTES:
                length, start = _varint(data, start)
                after = start + length
            else:
                after = start + _FIXED_BYTES[wire]
        except (EOFError, KeyError):
            return
        yield WireField(number, wire, begin, start, after)
        begin = after


def _varint(data: mmap.mmap | memoryview, start: int) -> tuple[int, int]:
    """A number, of seven bits a byte, and where it ends. Raises EOFError where none is."""
    value = 0
    for place, byte in enumerate(data[start : start + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, start + place + 1
    raise EOFError


def _holds_message(head: bytes, field: WireField) -> bool:
    """Whether the value begins as a message does, and not as a name."""
    return head[field.start : field.start + 1] == b"\x0a"


def _text_kind(head: bytes) -> FileKind | None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return FileKind(
            "a text file (UTF-16)", "as PowerShell's > writes it; --output FILE does not"
        )
    try:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        text = decoder.decode(head, final=len(head) < _HEAD_BYTES)  # may end within a letter
    except UnicodeDecodeError:
        return None
    if not all(letter.isprintable() or letter in "\t\r\n\f" for letter in text):
        return None
    start = text.lstrip()
    lower = start[:64].lower()
    if lower.startswith(("<!doctype html", "<html")):
        return _HTML
    if lower.startswith(("<?xml", "<net ")):
        return _xml_kind(text)
    if start.startswith("ir_version:"):
        return FileKind("an ONNX model as text", _ONNX_TEXT.format("textproto"))
    if start.startswith("<") and "ir_version" in start[:64]:
        return FileKind("an ONNX model as text", _ONNX_TEXT.format("onnxtxt"))
    if start.startswith(("outs:", "md5:")) and "path:" in start:
        return FileKind("a DVC file", "dvc pull FILE fetches what it stands for", is_stand_in=True)
    if start.startswith(("{", "[")):
        return _json_kind(start)
    return FileKind(f"a text file that begins with {_shown(start)}")


def _json_kind(text: str) -> FileKind:
    first = text.partition("\n")[0]
    if '"tunefarm-records"' in first:
        return _RECORDS
    if '"irVersion"' in text:
        return FileKind("an ONNX model as JSON", _ONNX_TEXT.format("json"))
    return FileKind(f"a JSON file that begins with {_shown(text)}")


def _xml_kind(text: str) -> FileKind:
    if "<net " in text:
        return FileKind("an OpenVINO model (IR)", f"give the .onnx file, or {_EXPORT}")
    if "<Error>" in text:
        advice = "download the file again; its address may need a login"
        return FileKind("an error of a file server (XML)", advice, is_stand_in=True)
    return FileKind("an XML file")


def _shown(text: str) -> str:
    """The beginning of a text, as one line that no terminal minds."""
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…")
