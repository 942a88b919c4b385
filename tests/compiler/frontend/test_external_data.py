"""External data is found next to the model or below, also behind links, and nowhere else."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.frontend.test_tensors import written
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.limits import Limits

VALUES = np.arange(4, dtype=np.float32)
DATA = VALUES.tobytes()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 16\n" % 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a model, in one with other files of the user's."""
    path = tmp_path / "model"
    path.mkdir()
    (tmp_path / "w.bin").write_bytes(DATA)
    return path


def refused(model: Path, limits: Limits | None = None) -> str:
    with pytest.raises(ImportModelError) as caught:
        import_onnx(model, limits=limits)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read(model: Path) -> None:
    np.testing.assert_array_equal(import_onnx(model).constants["w"], VALUES)


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../w.bin",
        "data/../../w.bin",
        "data/../w.bin",
        "C:\\w.bin",
        "..\\w.bin",
        "\\\\a\\b",
        "out/w.bin",
        "out/back/../w.bin",
    ],
)
def test_no_name_in_a_model_leads_out_of_its_folder(folder: Path, location: str) -> None:
    (folder / "data").mkdir()
    (folder / "out").symlink_to("..")
    assert "outside the model's folder" in refused(written(folder, {"location": location}))


@pytest.mark.parametrize(
    "link",
    [
        lambda folder: (folder / "w.bin").symlink_to("../w.bin"),
        lambda folder: (folder / "w.bin").symlink_to(folder.parent / "w.bin"),
        lambda folder: (
            (folder / "w.bin").symlink_to("again.bin"),
            (folder / "again.bin").symlink_to("../w.bin"),
        ),
    ],
)
def test_a_link_next_to_the_model_may_lead_anywhere(
    folder: Path, link: Callable[[Path], object]
) -> None:
    link(folder)
    read(written(folder, {"location": "w.bin"}))


def test_a_link_below_the_model_may_lead_anywhere(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data/w.bin").symlink_to("../../w.bin")
    (folder / "same").symlink_to("data")  # a linked folder that stays inside
    read(written(folder, {"location": "data/w.bin"}))
    read(written(folder, {"location": "same/w.bin"}))


@pytest.mark.parametrize("name", ["model.onnx", "onnx/model.onnx"])
def test_the_cache_of_a_model_hub_is_read(tmp_path: Path, name: str) -> None:
    """Everything is a link into blobs/, whose files are named by their hashes."""
    blobs, model = tmp_path / "blobs", tmp_path / "snapshots/4f2a" / name
    blobs.mkdir()
    model.parent.mkdir(parents=True)
    (blobs / "77d0").write_bytes(DATA)
    written(blobs, {"location": "model.onnx_data"}).rename(blobs / "9c1b")
    for link, blob in ((model, "9c1b"), (model.with_name("model.onnx_data"), "77d0")):
        link.symlink_to(os.path.relpath(blobs / blob, link.parent))
    read(model)


def test_data_next_to_the_target_of_a_linked_model_is_found(folder: Path, tmp_path: Path) -> None:
    (folder / "w.bin").write_bytes(DATA)
    link = tmp_path / "elsewhere" / "link.onnx"
    link.parent.mkdir()
    link.symlink_to(written(folder, {"location": "w.bin"}))
    read(link)


def test_data_next_to_the_link_goes_before_that_next_to_its_target(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "w.bin").write_bytes(bytes(16))
    link = tmp_path / "link.onnx"
    link.symlink_to(written(folder, {"location": "w.bin"}))
    read(link)


@pytest.mark.parametrize("location", ["../w.bin", "out/w.bin"])
def test_the_folder_of_the_target_is_not_left_either(
    folder: Path, tmp_path: Path, location: str
) -> None:
    (folder / "out").symlink_to("..")
    link = tmp_path / "elsewhere" / "link.onnx"
    link.parent.mkdir()
    link.symlink_to(written(folder, {"location": location}))
    assert "outside the model's folder" in refused(link)


def test_a_link_to_nothing_says_where_it_leads(folder: Path) -> None:
    (folder / "w.bin").symlink_to("../../blobs/77d0")
    text = refused(written(folder, {"location": "w.bin"}))
    assert "'w.bin' of initializer 'w' is a link to ../../blobs/77d0, which is not there" in text


def test_links_in_a_circle_are_refused(folder: Path) -> None:
    (folder / "w.bin").symlink_to("v.bin")
    (folder / "v.bin").symlink_to("w.bin")
    assert "'w.bin' of initializer 'w' is" in refused(written(folder, {"location": "w.bin"}))


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "pipe", "/proc/self/mem"])
def test_what_is_no_file_is_refused_and_not_waited_for(folder: Path, target: str) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "w.bin").symlink_to(target)
    assert "'w.bin'" in refused(written(folder, {"location": "w.bin"}))


def test_of_a_huge_sparse_file_only_what_a_tensor_needs_is_read(folder: Path) -> None:
    with (folder / "w.bin").open("wb") as file:
        file.write(DATA)
        file.truncate(1 << 42)
    read(written(folder, {"location": "w.bin"}))


def test_a_huge_sparse_model_is_refused_by_its_size(tmp_path: Path) -> None:
    path = written(tmp_path, {"location": "w.bin"})
    with path.open("r+b") as file:
        file.truncate(1 << 42)
    assert "are allowed" in refused(path, Limits(bytes=1 << 30))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (LFS, "is a Git LFS pointer, not the data (git lfs pull fetches the file)"),
        (b"<!DOCTYPE html>\n<html></html>\n", "is an HTML page, not the data (download"),
        (b"/annex/objects/SHA256E-s16--ab.bin\n", "is a git-annex pointer, not the data"),
        (
            gzip.compress(b"", mtime=0)[:10],
            "has 10 bytes, and 16 are needed: it is a gzip file, not",
        ),
        (b"not found", "it is a text file that begins with 'not found', not the data"),
        (b"", "has 0 bytes, and 16 are needed: it is empty (fetch"),
    ],
)
def test_what_stands_in_the_place_of_data_is_told(folder: Path, content: bytes, told: str) -> None:
    """Also where it has as many bytes as the tensor needs: they are no weights."""
    (folder / "w.bin").write_bytes(content)
    text = refused(written(folder, {"location": "w.bin"}))
    assert text.startswith("external data 'w.bin' of initializer 'w' ") and told in text
