"""Files that people give for a model: what they are is said, and what to do."""

from __future__ import annotations

import gzip
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_onnx

LFS_POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""


def zipped(*names: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")

    return write


def tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "model.onnx")


def compressed(path: Path) -> None:
    path.write_bytes(gzip.compress(tiny_model().SerializeToString()))


def text(content: str | bytes) -> Callable[[Path], None]:
    data = content.encode() if isinstance(content, str) else content
    return lambda path: void(path.write_bytes(data))


def void(_: object) -> None: ...


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pointer": (text(LFS_POINTER), r"a Git LFS pointer .*git lfs pull"),
    "gzip": (compressed, "compressed with gzip .*gunzip"),
    "xz": (text(b"\xfd7zXZ\0rest"), "compressed with xz"),
    "zstd": (text(b"\x28\xb5\x2f\xfdrest"), "compressed with zstd"),
    "tar": (tar, "a tar archive"),
    "zip": (zipped("a/model.onnx", "readme"), r"a zip archive .*extract a/model\.onnx"),
    "cut zip": (text(b"PK\3\4rest"), "a zip archive that is cut off"),
    "PyTorch": (zipped("net/data.pkl", "net/data/0"), r"PyTorch's weights .*torch\.onnx\.export"),
    "TorchScript": (zipped("net/code/__torch__.py", "net/data.pkl"), "a TorchScript model"),
    "old PyTorch": (text(pickle.dumps({"a": 1}, protocol=2)), "a pickle, as PyTorch writes"),
    "arrays": (lambda path: np.savez(path.open("wb"), x=np.zeros(2)), "an archive of NumPy arrays"),
    "safetensors": (
        text((80).to_bytes(8, "little") + b'{"w":{}}'),
        "weights alone, in safetensors",
    ),
    "GGUF": (text(b"GGUF\3\0\0\0"), "a GGUF model"),
    "TFLite": (text(b"\x1c\0\0\0TFL3rest"), "a TensorFlow Lite model"),
    "ORT": (text(b"\x30\0\0\0ORTMrest"), "onnxruntime's own format"),
    "Keras": (text(b"\x89HDF\r\n\x1a\n"), "an HDF5 file, as Keras writes"),
    "page": (text("  <!DOCTYPE html>\n<html>not found"), "an HTML page, .*download the file again"),
    "OpenVINO": (text("<?xml version='1.0'?>\n<net name='a'>"), "an OpenVINO model"),
    "JSON": (text('{"error": "unauthorized"}'), "JSON text"),
    "built": (text(b"TUNEFARM\1\0\0\0"), "tunefarm has built .*tune run"),
    "library": (text(b"\x7fELF\2\1\1"), "a program or a library"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_a_file_is_and_what_to_do_is_said(name: str, tmp_path: Path) -> None:
    write, said = FILES[name]
    path = tmp_path / "model.onnx"
    write(path)
    with pytest.raises(ImportModelError, match=f"is no ONNX model: it is .*{said}") as raised:
        import_onnx(path)
    assert raised.value.hint and "\n" not in str(raised.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_model_that_is_cut_off_is_told_from_what_is_none(share: float, tmp_path: Path) -> None:
    data = tiny_model().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ImportModelError, match=r"cut off, or damaged .*bytes: compare"):
        import_onnx(path)


def test_a_folder_names_the_model_in_it(tmp_path: Path) -> None:
    onnx.save(tiny_model(), tmp_path / "model.onnx")
    with pytest.raises(
        ImportModelError, match=r"is a folder, not an ONNX file \(give .*model\.onnx"
    ):
        import_onnx(tmp_path)
