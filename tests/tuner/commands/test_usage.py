"""What a newcomer reads: the help of every command, and what is said of a wrong one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.commands.usage import ORDER, Workflow, first_sentence


@pytest.fixture
def say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    """What a command line prints, and its exit code, in a folder with a model and a text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    onnx.save(tiny_model(), "m.onnx")
    Path("notes.txt").write_text("notes\n")
    Path("p.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:9\nsize 9\n")
    Path("gone.onnx").symlink_to("../blobs/9c1b")
    Path("folder").mkdir()
    Path("folder/model.onnx").touch()

    def run(line: str) -> tuple[int, str]:
        code = run_command(app, [word if word != "''" else "" for word in line.split()])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    yield run


def groups(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words, groups among them."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from groups(inner, (*path, name))


COMMANDS = dict(groups(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_says_in_whole_sentences_what_a_command_does(say: Any, path: tuple[str, ...]) -> None:
    code, text = say(" ".join((*path, "--help")))
    assert code == 0
    assert not re.search(r"\w\.\.\.", text)  # nothing is cut short
    assert first_sentence(COMMANDS[path].help or "").endswith(".")
    for parameter in COMMANDS[path].params:
        assert getattr(parameter, "help", None), f"{parameter.name} of {' '.join(path)}"


def test_commands_stand_in_the_order_in_which_they_are_used(say: Any) -> None:
    _, text = say("--help")
    listed = text.partition("Commands:")[2]
    places = [listed.find(f"\n  {name} ") for name in ORDER if f"\n  {name} " in listed]
    assert len(places) >= 10 and places == sorted(places)
    assert "First steps: tune zoo" in text
    assert all(isinstance(c, Workflow) for c in COMMANDS.values() if getattr(c, "commands", None))


@pytest.mark.parametrize(
    "group",
    [path for path in COMMANDS if path and hasattr(COMMANDS[path], "commands")],
    ids=" ".join,
)
def test_a_group_alone_shows_what_it_has(say: Any, group: tuple[str, ...]) -> None:
    code, text = say(" ".join(group))
    assert code == 2 and text.startswith("Usage: tune ")
    assert len(text.splitlines()) > 5


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "tune --model FILE"),
        ("m.onnx", "To tune a model: tune --model m.onnx"),
        ("biuld", "Did you mean 'build'? (see tune --help)"),
        ("build --model m.onnx", "tune build needs --output PATH (see tune build --help)"),
        ("build --modle m.onnx", "--model) (see tune build --help)"),
        ("run", "tune run needs FILE (see tune run --help)"),
        ("db show", "tune db show needs KEY (see tune db show --help)"),
        ("zoo mlp", "say where the file goes: tune zoo mlp --output mlp.onnx"),
    ],
)
def test_wrong_words_are_told_with_what_to_type(say: Any, line: str, told: str) -> None:
    code, text = say(line)
    assert code == 2 and told in text and len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--model .", "'.' is no model but a folder"),
        ("--model ''", "the model's name is empty"),
        ("zoo resnet", "did you mean resnet"),
        (
            "run m.onnx",
            "m.onnx is an ONNX model, not an artifact of tune build (tune build --model m.onnx",
        ),
        ("run notes.txt", "notes.txt is a text file that begins with 'notes', not an artifact"),
        ("run p.onnx", "p.onnx is a Git LFS pointer, not an artifact of tune build (git"),
        ("--model p.onnx", "p.onnx is a Git LFS pointer, not an ONNX model (git lfs pull fetches"),
        (
            "inspect --model p.onnx --stage graph",
            "is a Git LFS pointer, not an ONNX model (git lfs",
        ),
        ("build --model p.onnx --untuned --output m.tuned", "is a Git LFS pointer, not an ONNX"),
        ("bench --model p.onnx --untuned", "is a Git LFS pointer, not an ONNX model (git lfs"),
        ("jobs add --model p.onnx", "is a Git LFS pointer, not an ONNX model (git lfs pull"),
        (
            "inspect --model folder --stage graph",
            "is no model but a folder (give the file: folder/",
        ),
        ("inspect --model gone.onnx --stage graph", "gone.onnx is a link to ../blobs/9c1b, which"),
        ("build --model m.onnx --output m.tuned", "no such database: tuning.db"),
        ("build --model m.onnx --output m.tuned", "without one: --untuned"),
        ("verify --model m.onnx", "no such database: tuning.db (what tune --model has recorded"),
        ("bench --model m.onnx", "without one: --untuned"),
        ("report --html r.html", "no such database: tuning.db"),
    ],
)
def test_missing_and_wrong_files_are_told_with_what_to_do(say: Any, line: str, told: str) -> None:
    code, text = say(line)
    assert code == 1 and told in text and len(text.splitlines()) == 1


def test_an_input_that_is_no_array_says_what_writes_one(say: Any) -> None:
    assert say("build --model m.onnx --untuned --output m.tuned")[0] == 0
    code, text = say("run m.tuned --input x=notes.txt")
    assert code == 1 and "numpy.save" in text and "allow_pickle" not in text


def test_the_help_of_build_says_how_to_build_without_records(say: Any) -> None:
    assert "tune build --model FILE --untuned --output PATH" in " ".join(
        say("build --help")[1].split()
    )


def test_the_zoo_lists_its_networks(say: Any) -> None:
    code, text = say("zoo")
    assert code == 0 and {"resnet18", "mlp"} <= set(text.split())
