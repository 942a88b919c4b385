"""What is kept of a command line means the same in any folder, and holds no password."""

from __future__ import annotations

import itertools
import shlex
import time
from pathlib import Path

import pytest

from tunefarm.configs.settings import load_settings
from tunefarm.tuner.commands.options import parsed_tune, tune_options
from tunefarm.tuner.commands.typed_command import next_build, next_commands, typed_command
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
    files = ["--model", "m.onnx", "--json-progress", "sub/p.json", "--json", "-"]
    found = values(typed(*files, "--config", "quick", "--trials", "30"))
    assert found == {
        "--model": str(folder / "m.onnx"),
        "--json-progress": str(folder / "sub/p.json"),
        "--json": "-",
        "--config": "quick",
        "--trials": "30",
        "--db": str(folder / "tuning.db"),
    }
    more = ["--config", "my.toml", "--db", "n.db", "--machine", "cpu.toml"]
    other = values(typed("--model", "m.onnx", *more))
    assert other["--config"] == str(folder / "my.toml") and other["--db"] == str(folder / "n.db")
    assert other["--machine"] == str(folder / "cpu.toml")


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


def build_after(*functions: str, **overrides: object) -> list[str]:
    """What is said to be typed next, in words."""
    settings = load_settings(None, overrides, environment={})
    return shlex.split(next_build("mlp.onnx", settings, None, {"x": (3, 4)}, "log.db", functions))


def values_of(option: str, typed: list[str]) -> list[str]:
    return [value for name, value in itertools.pairwise(typed) if name == option]


def test_functions_of_a_job_are_loaded_by_its_build_too() -> None:
    assert values_of("--functions", build_after("my ops.py", "own.ops")) == ["my ops.py", "own.ops"]
    assert "--functions" not in build_after()


def test_what_decides_about_code_is_typed_again() -> None:
    typed = build_after(
        **{
            "compile.threads": 2,
            "compile.denormals": "keep",
            "compile.machine": "cpu.toml",
        }
    )
    assert values_of("--threads", typed) == ["2"]
    assert values_of("--machine", typed) == ["cpu.toml"]
    assert values_of("--denormals", typed) == ["keep"]
    assert values_of("--shape", typed) == ["x=3,4"]


def test_what_would_change_a_build_is_typed_with_its_options() -> None:
    more = {"compile.targets": ["x86-64-v3", "x86-64-v4"], "compile.threads": 2}
    more |= {"database.layers": ["team.db", "a b.db"]}
    settings = load_settings(None, more, environment={})
    found = next_commands("my model.onnx", settings, None, {"h": ("1..8",)}, "log.db", ["f.py"])
    told = "--threads 2 --targets {} --functions f.py --shape h=1..8"
    tune = f"tune 'my model.onnx' --db log.db {told.format('x86-64-v3,x86-64-v4')}"
    assert found.tune == tune
    assert found.verify == {
        name: f"tune verify 'my model.onnx' --db log.db {told.format(name)} --quick "
        "--layers 'team.db,a b.db'"
        for name in ("x86-64-v3", "x86-64-v4")
    }


def test_a_server_that_was_not_typed_is_not_printed() -> None:
    values = {"database.url": "postgresql://me:sesame@host/db"}
    settings = load_settings(None, values, environment={})
    found = next_commands("m.onnx", settings, None, {}, None)
    assert "sesame" not in found.tune + "".join(found.verify.values())
