"""What a file is that is not what was expected is told by its contents, with what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.configs.file_kinds import is_onnx, kind_of, stand_in

MODEL = tiny_model().SerializeToString()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 44723123\n" % 7


def zipped(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def tarred() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        entry = tarfile.TarInfo("resnet/model.onnx")
        entry.size = len(MODEL)
        archive.addfile(entry, io.BytesIO(MODEL))
    return content.getvalue()


def array() -> bytes:
    content = io.BytesIO()
    np.save(content, np.zeros(3))
    return content.getvalue()


def message(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


SAFETENSORS = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
LEGACY_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
SAVED_MODEL = b"\x08\x01" + message(2, message(1, message(4, b"serve")))
GRAPH_DEF = message(1, message(1, b"x") + message(2, b"Placeholder"))

KINDS = {
    "pointer.onnx": (LFS, "a Git LFS pointer", "git lfs pull"),
    "annexed.onnx": (b"/annex/objects/SHA256E-s5--ab.onnx\n", "a git-annex", "git annex get"),
    "outs.dvc": (b"outs:\n- md5: ab\n  path: model.onnx\n", "a DVC file", "dvc pull"),
    "m.onnx.gz": (gzip.compress(MODEL), "a gzip file", "gunzip < "),
    "m.xz": (lzma.compress(MODEL), "an xz file", "xz -dc "),
    "m.bz2": (bz2.compress(MODEL), "a bzip2 file", "bunzip2 < "),
    "m.zst": (b"\x28\xb5\x2f\xfd\x24" + bytes(90), "a zstd file", "zstd -dc "),
    "m.tar": (tarred(), "a tar archive", "tar xf "),
    "m.zip": (zipped({"net/a.onnx": MODEL}), "a zip archive", "'net/a.onnx'"),
    "cut.zip": (zipped({"a.onnx": MODEL})[:-30], "damaged or cut off", "fetch it again"),
    "m.pt": (zipped({"m/data.pkl": b"", "m/data/0": b""}), "a PyTorch file", "torch.onnx.export"),
    "s.pt": (zipped({"m/data.pkl": b"", "m/code/a.py": b""}), "a TorchScript", "torch.onnx.export"),
    "m.pt2": (zipped({"m/archive_format": b"pt2"}), "torch.export", "torch.onnx.export"),
    "old.pth": (LEGACY_TORCH, "a PyTorch file", "torch.onnx.export"),
    "m.pkl": (pickle.dumps({"a": [1, 2]}), "a Python pickle", "export"),
    "m.keras": (zipped({"config.json": b"{}", "model.weights.h5": b""}), "a Keras model", "export"),
    "m.h5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file", "export"),
    "m.npz": (zipped({"a.npy": array()}), "NumPy arrays", ""),
    "m.npy": (array(), "a NumPy array", ""),
    "m.safetensors": (
        len(SAFETENSORS).to_bytes(8, "little") + SAFETENSORS + bytes(4),
        "a safetensors file",
        "optimum-cli export onnx",
    ),
    "m.gguf": (b"GGUF\x03\0\0\0" + bytes(40), "a GGUF file", "export"),
    "saved_model.pb": (SAVED_MODEL, "a TensorFlow SavedModel", "--saved-model"),
    "frozen.pb": (GRAPH_DEF, "a TensorFlow graph", "--graphdef"),
    "m.tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model", "--tflite"),
    "m.ort": (b"\x18\0\0\0ORTM" + bytes(40), "onnxruntime's own format", "export"),
    "ir.xml": (b'<?xml version="1.0"?>\n<net name="a" version="11">', "an OpenVINO model", ".onnx"),
    "page.onnx": (b"\n<!DOCTYPE html>\n<html>", "an HTML page", "download"),
    "s3.onnx": (b"<?xml version='1.0'?>\n<Error><Code>AccessDenied", "an error of", "download"),
    "answer.onnx": (b'{"error": "Repository not found"}', '\'{"error": "Repository', ""),
    "m.json": (b'{"irVersion": "8", "graph": {}}', "an ONNX model as JSON", "format='json'"),
    "m.pbtxt": (b"ir_version: 8\ngraph {\n}", "an ONNX model as text", "format='textproto'"),
    "m.txt": (onnx.printer.to_text(tiny_model()).encode(), "an ONNX model as text", "'onnxtxt'"),
    "gone.onnx": (b"Entry not found", "a text file that begins with 'Entry not found'", ""),
    "esc.onnx": ("\u00e4\u00f6 caf\u00e9".encode() * 900, "a text file", ""),
    "utf16.onnx": ("text".encode("utf-16"), "a text file (UTF-16)", ""),
    "zeros.onnx": (bytes(5000), "begins with zeros", "fetch it again"),
    "empty.onnx": (b"", "empty", "fetch"),
    "cut.onnx": (MODEL[:-9], f"is cut off at {len(MODEL) - 9} of at least ", "fetch"),
    "m.tuned": (b"TUNEFARM\x06\0\0\0" + bytes(60), "an artifact of tune build", "tune run "),
    "tuning.db": (b"SQLite format 3\0" + bytes(60), "an SQLite database", "--db"),
    "r.jsonl": (b'{"format":"tunefarm-records","version":9}\n', "an export of", "tune db import"),
    "lib.so": (b"\x7fELF\x02" + bytes(60), "a program or shared library", ""),
    "m.mlmodel": (b"\x08\x01\x9a\x99", "a Core ML model", "export"),
    "m.onnx": (MODEL, "an ONNX model", "tune build"),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_told_by_its_contents(tmp_path: Path, name: str) -> None:
    content, what, advice = KINDS[name]
    path = tmp_path / name
    path.write_bytes(content)
    kind = kind_of(path)
    assert kind is not None
    assert what in f"is {kind.what}" and advice in kind.advice
    assert "FILE" not in kind.advice
    assert is_onnx(path) == (name == "m.onnx")
    assert kind.what.isprintable() and len(kind.what) < 100


@pytest.mark.parametrize("content", [b"\x9b\x1b[2J", b"\x07\xff\xfe\x00\x80\x81"])
def test_of_what_is_not_known_nothing_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\xf8" + content)
    assert kind_of(path) is None
    assert kind_of(tmp_path / "none.onnx") is None
    assert kind_of("a\0b") is None


def test_every_cut_of_a_model_is_told_as_one_once_its_graph_has_begun(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    begun = MODEL.index(b"conv1")
    for length in (begun, len(MODEL) // 2, len(MODEL) - len("tiny") - 12):
        path.write_bytes(MODEL[:length])
        kind = kind_of(path)
        assert kind is not None and kind.says_all and f"cut off at {length} of" in kind.what


def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert kind_of(tmp_path / "pipe") is None


def test_a_link_to_nothing_says_where_it_leads_and_what_fetches_it(tmp_path: Path) -> None:
    for target, advice in (
        (".git/annex/objects/ab/cd", "git annex get "),
        ("/cache/.dvc/cache/ab", "dvc checkout "),
        ("../../blobs/9c1b", "fetch it again"),
    ):
        link = tmp_path / f"{len(target)}.onnx"
        link.symlink_to(target)
        kind = kind_of(link)
        assert kind is not None and kind.says_all
        assert target in kind.what and advice in kind.advice


def test_a_file_that_dvc_has_not_fetched_is_told_by_its_dvc_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx.dvc").write_text("outs:\n- path: m.onnx\n")
    kind = kind_of(tmp_path / "m.onnx")
    assert kind is not None and "only its .dvc file" in kind.what
    assert kind.advice.startswith(f"dvc pull {tmp_path}/m.onnx")


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (["model.onnx"], "/model.onnx"),
        (["onnx/model.onnx", "config.json"], "/onnx/model.onnx"),
        (["a.onnx", "b.onnx", "c.onnx", "d.onnx", "e.onnx"], "c.onnx or 2 more"),
        (["saved_model.pb"], "--saved-model"),
        (["model.safetensors"], "optimum-cli export onnx"),
        (["notes.txt"], "there is none in it"),
    ],
)
def test_a_folder_says_which_file_of_it_to_give(
    tmp_path: Path, names: list[str], advice: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    kind = kind_of(tmp_path)
    assert kind is not None and kind.what == "a folder" and advice in kind.advice


def test_stand_ins_are_told_from_weights() -> None:
    assert stand_in(LFS[:256]) is not None
    assert stand_in(KINDS["page.onnx"][0]) is not None
    assert stand_in(gzip.compress(MODEL)) is None  # weights may begin so
    assert stand_in(np.linspace(0, 1, 64, dtype=np.float32).tobytes()) is None
    assert stand_in(b"weights in ASCII") is None
