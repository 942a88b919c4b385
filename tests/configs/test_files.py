"""Only regular files are opened, and what is read is all of them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tunefarm.configs.errors import SettingsError
from tunefarm.configs.files import open_regular, read_regular
from tunefarm.configs.settings import load_settings


def test_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(path, most=7) == b"content"
    assert read_regular(tmp_path / "link") == b"content"
    with open_regular(path) as file:
        assert file.read() == b"content"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    "make",
    [_pipe, _socket, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: None],
    ids=["pipe", "socket", "folder", "device", "missing"],
)
def test_what_is_no_regular_file_is_refused_at_once(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "it")
    with pytest.raises(OSError, match=r"not a regular file|folder|No such"):
        read_regular(tmp_path / "it")


def test_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with pytest.raises(OSError, match="it has 7 bytes, and 6 are allowed"):
        read_regular(path, most=6)


@pytest.mark.parametrize("change", [-1, 1])
def test_file_that_changes_its_size_meanwhile_is_refused(
    change: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    really = os.fstat

    def stale(descriptor: int) -> object:
        status = list(really(descriptor))
        status[6] -= change  # the size that it had before
        return os.stat_result(status)

    monkeypatch.setattr("tunefarm.configs.files.os.fstat", stale)
    with pytest.raises(OSError, match="changed while it was read"):
        read_regular(path)


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_settings_file_that_is_none_is_refused_at_once(what: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(SettingsError, match="it is not a regular file"):
        load_settings(str(path))
