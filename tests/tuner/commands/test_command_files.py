"""No command writes over what it reads, whatever that is called, and outputs appear at once."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tunefarm.compiler.runtime.artefact.file_header import MAGIC
from tunefarm.configs.errors import SettingsError
from tunefarm.configs.files import replacing, write_text
from tunefarm.tuner.commands.command_files import (
    ARTEFACT_START,
    check_files,
    database_file,
    external_data,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def same(name: str) -> str:
    return name


def absolute(name: str) -> str:
    return os.path.abspath(name)


def through_a_folder(name: str) -> str:
    Path("folder").mkdir()
    return f"folder/../{name}"


def hard_link(name: str) -> str:
    os.link(name, "hard")
    return "hard"


def symbolic_link(name: str) -> str:
    os.symlink(name, "soft")
    return "soft"


WAYS = [same, absolute, through_a_folder, hard_link, symbolic_link]


@pytest.mark.parametrize("way", WAYS)
def test_an_input_is_no_output(way: Callable[[str], str]) -> None:
    Path("input").write_text("kept")
    with pytest.raises(SettingsError, match="is an input"):
        check_files(writes=["new", way("input")], reads=["other", "input"])


@pytest.mark.parametrize("way", [same, absolute, through_a_folder])
def test_a_database_that_is_not_there_yet_is_no_output(way: Callable[[str], str]) -> None:
    with pytest.raises(SettingsError, match="is an input"):
        check_files(writes=[way("new.db")], databases=["new.db"])


@pytest.mark.parametrize("end", ["", "-journal", "-wal", "-shm"])
def test_the_default_database_and_the_files_beside_it_are_no_outputs(end: str) -> None:
    with pytest.raises(SettingsError, match="is an input"):
        check_files(writes=[f"tuning.db{end}"], databases=[None])


def test_a_database_is_known_by_its_url() -> None:
    with pytest.raises(SettingsError, match="is an input"):
        check_files(writes=["x.db"], databases=["sqlite:///x.db"])
    assert database_file("sqlite://") is None
    assert database_file("postgresql://host/base") is None


@pytest.mark.parametrize("end", ["", "-journal", "-wal"])
def test_another_database_is_no_output_either(end: str) -> None:
    with closing(sqlite3.connect("other.db")) as connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(SettingsError, match="belongs to a database"):
        check_files(writes=[f"other.db{end}"])


@pytest.mark.parametrize("way", WAYS)
def test_two_outputs_are_two_files(way: Callable[[str], str]) -> None:
    Path("x").touch()
    with pytest.raises(SettingsError, match="written twice"):
        check_files(writes=["x", way("x")])


@pytest.mark.parametrize("name", ["weights.bin", "w" * 200])
@pytest.mark.parametrize("way", WAYS)
def test_external_data_of_a_model_is_no_output(name: str, way: Callable[[str], str]) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=name)
    tensor.external_data.add(key="length", value="4")
    onnx.save(helper.make_model(helper.make_graph([], "g", [], [], [tensor])), "m.onnx")
    Path(name).write_bytes(bytes(4))
    assert external_data("m.onnx") == [name]
    with pytest.raises(SettingsError, match="is an input"):
        check_files(writes=[way(name)], model="m.onnx")


@pytest.mark.parametrize("path", ["fifo", "/dev/zero"])
def test_what_would_be_waited_for_is_no_input(path: str) -> None:
    os.mkfifo("fifo")
    with pytest.raises(SettingsError, match="not a regular file"):
        check_files(reads=[path])
    with pytest.raises(SettingsError, match="not a regular file"):
        check_files(model=path)


def test_artefacts_are_known_by_their_start() -> None:
    assert ARTEFACT_START == MAGIC


def test_other_files_may_be_overwritten() -> None:
    for name in ("old.json", "model", "x.npy"):
        Path(name).write_text("old")
    check_files(
        writes=["old.json", "new.json", "-", None], reads=["x.npy"], databases=[None], model="model"
    )


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "folder"),
        ("", "file name"),
        ("a\0b", "file name"),
        ("x" * 5000, "too long"),
        ("file/x", "Not a directory"),
        ("nowhere/x", "no folder nowhere"),
        ("fifo", "not a regular file"),
        ("/dev/full", "not a regular file"),
        ("loop", "circle"),
    ],
)
def test_what_cannot_be_written_is_refused(path: str, reason: str) -> None:
    Path("file").touch()
    os.mkfifo("fifo")
    os.symlink("loop", "loop")
    with pytest.raises(SettingsError, match=reason):
        check_files(writes=[path])


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(folder: Path) -> None:
    write_text("out", "old")
    with pytest.raises(KeyboardInterrupt), replacing("out") as unfinished:
        unfinished.write_text("half")
        raise KeyboardInterrupt
    assert Path("out").read_text() == "old"
    assert os.listdir(folder) == ["out"]


def test_a_write_follows_a_link_and_keeps_permissions() -> None:
    Path("out").touch(mode=0o640)
    os.symlink("out", "soft")
    write_text("soft", "new")
    assert Path("soft").is_symlink() and Path("out").read_text() == "new"
    assert Path("out").stat().st_mode & 0o777 == 0o640


def test_what_must_be_new_replaces_nothing() -> None:
    Path("out").write_text("old")
    with pytest.raises(FileExistsError), replacing("out", new=True):
        pass
    assert Path("out").read_text() == "old"
