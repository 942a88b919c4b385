"""Copies are whole or not there, and what is not expected is not copied."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from tunefarm.compiler.runtime.artefact import large_files
from tunefarm.compiler.runtime.artefact.large_files import ChangedFileError, copy_file


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files, "CHUNK_BYTES", 1000)


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 12_345])
def test_a_copy_has_the_same_bytes_and_the_hash_of_each_chunk(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    chunks = [content[start : start + 1000] for start in range(0, size, 1000)]
    expected = tuple(hashlib.sha256(chunk).hexdigest() for chunk in chunks)
    assert copy_file(source, target) == expected
    assert target.read_bytes() == content
    assert copy_file(source, target, expected) == expected
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]
    assert source.stat().st_ino != target.stat().st_ino


def test_pieces_are_written_as_whole_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, places = (10, 1, 2500, 0, 490, 3), (0, 64, 900, 3500, 3500, 5999)
    pieces = [(os.urandom(size), place) for size, place in zip(sizes, places, strict=True)]
    expected = bytearray(6002)
    for content, place in pieces:
        expected[place : place + len(content)] = content
    starts, write_at = list[int](), large_files.write_at

    def recorded(file: int, data: bytes | memoryview, start: int) -> None:
        starts.append(start)
        write_at(file, data, start)

    monkeypatch.setattr(large_files, "write_at", recorded)
    with open(tmp_path / "file", "wb", buffering=0) as file:
        large_files.reserve(file.fileno(), len(expected))
        large_files.write_pieces(file.fileno(), pieces)
    assert (tmp_path / "file").read_bytes() == expected
    assert sorted(starts) == [0, 1000, 2000, 3000, 5000, 6000]


@pytest.mark.parametrize("change", ["flipped", "longer", "shorter", "missing", "folder"])
def test_another_file_than_expected_is_not_copied(tmp_path: Path, change: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"a" * 5000)
    expected = copy_file(source, target)
    target.write_bytes(b"before")
    if change == "flipped":
        source.write_bytes(b"a" * 4321 + b"b" + b"a" * 678)
    elif change == "longer":
        source.write_bytes(b"a" * 5001)
    elif change == "shorter":
        source.write_bytes(b"a" * 4999)
    else:
        source.unlink()
    if change == "folder":
        source.mkdir()
    with pytest.raises(ChangedFileError):
        copy_file(source, target, expected)
    assert target.read_bytes() == b"before"
    assert sorted(set(os.listdir(tmp_path)) - {"source"}) == ["target"]


def test_a_copy_that_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"a" * 5000)
    target.write_bytes(b"before")
    written = 0

    def full(file: int, data: memoryview, offset: int) -> int:
        nonlocal written
        written += 1
        if written > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(file, data[:600])

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        copy_file(source, target)
    assert target.read_bytes() == b"before"
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]


def test_a_missing_folder_is_an_error_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"a")
    with pytest.raises(FileNotFoundError):
        copy_file(tmp_path / "source", tmp_path / "no" / "target")
