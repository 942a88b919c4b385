"""A model's file is told from another one by its hash, which is read where it must be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.end_to_end.tiny_model import external_model
from tunefarm.db.records import JobRecord
from tunefarm.tuner.building import model_file
from tunefarm.tuner.building.model_file import ModelStamp, external_names, model_digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose weights are in another file."""
    path = tmp_path / "tiny.onnx"
    external_model(path, "tiny.onnx_data")
    (tmp_path / "tiny.onnx_data").write_bytes(bytes(4096))
    return path


def stamp_of(model: Path) -> ModelStamp:
    stamp = ModelStamp.of(model)
    assert stamp is not None
    settings = json.loads(json.dumps(stamp.kept_in({"search": {}})))
    job = JobRecord("j", model.name, "h", settings, "running", 1.0, 1.0, None, {})
    assert ModelStamp.of_job(job) == stamp  # as it is kept with a job
    return stamp


def replace(path: Path, content: bytes) -> None:
    new = path.with_name("new")
    new.write_bytes(content)
    os.replace(new, path)


def test_files_that_were_not_touched_are_not_read_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = stamp_of(model)
    assert [file.name for file in stamp.files] == ["", "tiny.onnx_data"]
    model_file._scanned.cache_clear()

    def refuse(path: object) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(model_file, "open_regular", refuse)
    assert stamp.difference() == "" and not stamp.is_touched()


@pytest.mark.parametrize("name", ["tiny.onnx", "tiny.onnx_data"])
def test_the_same_contents_are_the_same_file(model: Path, name: str) -> None:
    stamp = stamp_of(model)
    path = model.with_name(name)
    replace(path, path.read_bytes())
    os.utime(path, ns=(1, 1))
    assert stamp.is_touched() and stamp.difference() == ""


def test_another_model_is_told_by_both_hashes(model: Path) -> None:
    stamp = stamp_of(model)
    replace(model, model.read_bytes() + b"\x28\x07")
    now = stamp_of(model).files[0].sha256
    then = stamp.files[0].sha256
    assert stamp.difference() == f"SHA-256 {then[:12]}… then, {now[:12]}… now"


def test_other_external_data_is_told_by_its_name(model: Path) -> None:
    stamp = stamp_of(model)
    replace(model.with_name("tiny.onnx_data"), bytes(4095) + b"\1")
    assert stamp.difference().startswith("tiny.onnx_data: SHA-256 ")


def test_external_data_written_in_place_is_noticed(model: Path) -> None:
    stamp = stamp_of(model)
    data = model.with_name("tiny.onnx_data")
    with data.open("r+b") as file:
        file.write(b"\1")
    os.utime(data, ns=(5, 5))
    assert "tiny.onnx_data: SHA-256 " in stamp.difference()


@pytest.mark.parametrize("name", ["tiny.onnx", "tiny.onnx_data"])
def test_a_link_that_leads_to_another_file_is_noticed(model: Path, name: str) -> None:
    path = model.with_name(name)
    blobs = model.parent / "blobs"
    blobs.mkdir()
    path.rename(blobs / "1")
    (blobs / "2").write_bytes((blobs / "1").read_bytes() + b"\x28\x07")
    path.symlink_to("blobs/1")
    stamp = stamp_of(model)
    assert len(stamp.files) == 2
    path.unlink()
    path.symlink_to("blobs/2")
    assert "SHA-256 " in stamp.difference()


@pytest.mark.parametrize("name", ["tiny.onnx", "tiny.onnx_data"])
def test_a_file_that_is_gone_is_told(model: Path, name: str) -> None:
    stamp = stamp_of(model)
    model.with_name(name).unlink()
    assert stamp.difference().endswith("it is gone") and stamp.is_touched()


def test_what_cannot_be_read_has_no_stamp(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path / "pipe", tmp_path, Path("a\0b")):
        assert ModelStamp.of(path) is None
        assert model_digest(path) is None and external_names(path) == ()


def test_a_digest_is_told_only_where_all_files_are_known(model: Path) -> None:
    cases = {
        b"\n\x0enode_alocation": True,  # a name that only contains the key
        b"\n\x08location\x12\x0etiny.onnx_data": True,
        b"\n\x08location\x12\x04none": False,  # no such file
        b"\x12\x0etiny.onnx_data\n\x08location": False,  # the key behind its value
        b"\n\x88\x80\x00location\x12\x0etiny.onnx_data": False,  # a length with zeros in front
        b"\n\x08location\x12\x8e\x80\x00tiny.onnx_data": False,
        b"\n\x08location\x12\x0fcut off": False,
    }
    for content, is_told in cases.items():
        model.write_bytes(content)
        assert (model_digest(model) is not None) == is_told, content


def test_a_digest_covers_external_data_and_its_name(model: Path) -> None:
    found = [model_digest(model)]
    model.with_name("tiny.onnx_data").write_bytes(bytes(4095) + b"\1")
    found.append(model_digest(model))
    model.with_name("tiny.onnx_data").rename(model.with_name("other_data"))
    external_model(model, "other_data")
    found.append(model_digest(model))
    assert len({*found, None}) == 4


def test_a_reference_is_found_wherever_pieces_of_the_file_end(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model_file._scanned(str(model), 0, 0, 0)
    for size in (7, 64, 100):
        monkeypatch.setattr(model_file, "_CHUNK_BYTES", size)
        assert model_file._scanned(str(model), 0, 0, size) == whole
    assert whole.references == ("tiny.onnx_data",) and not whole.may_miss


def test_of_a_huge_file_pieces_are_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "_WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(model_file, "_CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(model_file, "_SAMPLES", 16)
    data = model.with_name("tiny.onnx_data")
    os.truncate(data, 1 << 42)
    stamp = stamp_of(model)
    os.truncate(data, 1 << 41)
    assert "tiny.onnx_data: SHA-256 " in stamp.difference()
