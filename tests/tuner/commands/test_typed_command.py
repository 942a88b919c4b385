"""What is kept of a command line means the same in any folder, and holds no password."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tunefarm.tuner.commands.tune_options import parsed_tune, tune_options
from tunefarm.tuner.commands.typed_command import typed_command
from tunefarm.tuner.records.job_command import JobCommand


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*arguments: str) -> JobCommand:
    context = parsed_tune(arguments)
    return typed_command(context, tune_options(context.params).settings, time.monotonic() - 5.0)


def values(command: JobCommand) -> dict[str, str]:
    assert len(command.arguments) % 2 == 0
    return dict(zip(command.arguments[::2], command.arguments[1::2], strict=True))


def test_files_are_absolute_and_presets_keep_their_names(folder: Path) -> None:
    (folder / "my.toml").write_text("")
    files = ["--model", "m.onnx", "--trace", "t.json", "--metrics", "sub/m.prom", "--json", "-"]
    found = values(typed(*files, "--config", "quick", "--trials", "30"))
    assert found == {
        "--model": str(folder / "m.onnx"),
        "--trace": str(folder / "t.json"),
        "--metrics": str(folder / "sub/m.prom"),
        "--json": "-",
        "--config": "quick",
        "--trials": "30",
        "--db": str(folder / "tuning.db"),
    }
    other = values(typed("--model", "m.onnx", "--config", "my.toml", "--db", "n.db"))
    assert other["--config"] == str(folder / "my.toml") and other["--db"] == str(folder / "n.db")


def test_options_that_repeat_are_kept_each(folder: Path) -> None:
    shapes = ["--shape", "x=batch:1|4", "--shape", "y=1,3"]
    command = typed("--model", "m.onnx", *shapes, "--functions", "f.py", "--functions", "a.b")
    said = list(zip(command.arguments[::2], command.arguments[1::2], strict=True))
    assert ("--shape", "x=batch:1|4") in said and ("--shape", "y=1,3") in said
    assert ("--functions", str(folder / "f.py")) in said and ("--functions", "a.b") in said


def test_a_database_of_a_server_is_not_kept(folder: Path) -> None:
    command = typed("--model", "m.onnx", "--db", "postgresql://me:sesame@host/db")
    assert "--db" not in command.arguments and "sesame" not in str(command.to_json())


def test_when_and_where_it_was_typed_is_kept(folder: Path) -> None:
    command = typed("--model", "m.onnx", "--minutes", "7")
    assert command.folder == str(folder) and command.minutes == 7.0
    assert command.began == pytest.approx(time.time() - 5.0, abs=60.0)
    assert typed(*command.arguments).arguments == command.arguments
