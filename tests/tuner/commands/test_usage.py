"""What a newcomer reads: the help of every command, and what is said of a wrong one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import onnx
import pytest
import typer

from tests.end_to_end.tiny_model import tiny_model
from tunefarm import __version__, load
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import CompileSettings
from tunefarm.tuner.building.request import FORMS
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_files import EMIT, form_of
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.commands.engines import ENGINES
from tunefarm.tuner.commands.inspect_model import STAGES_TO_INSPECT
from tunefarm.tuner.commands.options import parsed_tune
from tunefarm.tuner.commands.usage import FORMER_OPTIONS, ORDER, Workflow, first_sentence
from tunefarm.tuner.records.trials import task_key


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
    assert not any(former in text for former in FORMER_OPTIONS)
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
        ("", "no model is given: type tune MODEL.onnx"),
        ("build", "tune build needs a model: tune build MODEL (see tune build --help)"),
        ("jobs add", "tune jobs add needs a model: tune jobs add MODEL (see"),
        ("m.onnx --model m.onnx", "m.onnx and --model are both given"),
        ("verify m.onnx --model m.onnx", "m.onnx and --model are both given"),
        ("m.onnx p.onnx", "one model at a time, or tune jobs add m.onnx p.onnx"),
        ("inspect m.onnx p.onnx --stage graph", "one model at a time, or tune jobs add"),
        ("qqqq", "'qqqq' is no command, and there is no such file (see tune --help)"),
        ("--seed 1 build m.onnx", "options of 'build' go after it: tune build --"),
        ("m.onnx -q -v", "--quiet and --verbose exclude each other"),
        ("m.onnx --json - --json-progress -", "cannot both write to stdout"),
        ("biuld", "Did you mean 'build'? (see tune --help)"),
        ("build --model m.onnx", "tune build needs --output PATH (see tune build --help)"),
        ("build --modle m.onnx", "--model) (see tune build --help)"),
        ("run", "tune run needs FILE (see tune run --help)"),
        ("db show", "tune db show needs KEY (see tune db show --help)"),
        ("zoo mlp", "no output file is given: tune zoo mlp --output mlp.onnx"),
    ],
)
def test_wrong_words_are_told_with_what_to_type(say: Any, line: str, told: str) -> None:
    code, text = say(line)
    assert code == 2 and told in text and len(text.splitlines()) == 1


def test_a_model_that_is_an_argument_stands_once_in_the_usage(say: Any) -> None:
    assert say("inspect --help")[1].splitlines()[0].endswith(" MODEL")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--model .", "'.' is no model but a folder"),
        ("--model ''", "the model's name is empty"),
        ("zoo resnet", "did you mean resnet"),
        (
            "run m.onnx",
            "m.onnx is an ONNX model, not an artifact of tune build (tune build m.onnx",
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
        ("build m.onnx --output m.tuned", "no such database: tuning.db"),
        ("p.onnx", "p.onnx is a Git LFS pointer, not an ONNX model (git lfs pull fetches"),
        ("./build", "there is no file build"),
        ("bench none --untuned", "there is no file none"),
        ("jobs add p.onnx", "p.onnx is a Git LFS pointer"),
        ("folder", "is no model but a folder"),
        ("build --model m.onnx --output m.tuned", "without one: --untuned"),
        ("verify --model m.onnx", "no such database: tuning.db (what tune has recorded"),
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
    assert "tune build MODEL --untuned --output PATH" in " ".join(say("build --help")[1].split())


def test_the_zoo_lists_its_networks(say: Any) -> None:
    code, text = say("zoo")
    assert code == 0 and {"resnet18", "mlp"} <= set(text.split())


def test_a_command_goes_before_a_file_of_its_name(say: Any) -> None:
    Path("build").write_bytes(Path("m.onnx").read_bytes())
    assert "tune build needs a model" in say("build")[1]
    assert "there is no file" not in say("./build --config none")[1]
    assert parsed_tune(["./build"]).params["model"] == "./build"
    assert parsed_tune(["--trials", "3", "build.x/m", "--seed", "1"]).params["seed"] == 1


def test_the_version_is_that_of_the_package(say: Any) -> None:
    assert say("--version") == (0, f"tunefarm {__version__}\n")


def test_former_names_of_options_work() -> None:
    for former, name in (("--numerics", "--precision"), ("--numerics=bf16", "--precision=bf16")):
        values = [] if "=" in former else ["f16"]
        params = [parsed_tune([option, *values]).params["numerics"] for option in (former, name)]
        assert params == ["bf16" if "=" in former else "f16"] * 2
    for option in ("--quantised", "--quantized"):
        assert COMMANDS["zoo",].make_context("zoo", ["mlp", option]).params["quantized"]


@pytest.mark.parametrize("precision", ["--precision fp16", "--numerics f16"])
def test_a_build_in_fp16_is_recorded_as_f16(say: Any, precision: str) -> None:
    assert say(f"build m.onnx --untuned {precision} -o m.tuned")[0] == 0
    assert load("m.tuned").spec.numerics == "f16"


def test_deterministic_is_short_for_a_precision_whose_records_are_its_own(say: Any) -> None:
    assert say("build m.onnx --untuned --deterministic -o m.tuned")[0] == 0
    numerics = load("m.tuned").spec.numerics
    assert numerics == "deterministic"
    keys = {task_key("", host_target(), 1, name) for name in ("default", "bf16", numerics)}
    assert len(keys) == 2
    code, text = say("build m.onnx --untuned --deterministic --precision bf16 -o m.tuned")
    assert code != 0 and "--deterministic is --precision deterministic, not bf16" in text


@pytest.mark.parametrize(("emit", "former"), EMIT.items())
def test_forms_have_a_name_and_a_former_one(say: Any, emit: str, former: str) -> None:
    assert form_of(emit) == form_of(former) == former and former in FORMS
    code, text = say("build m.onnx --untuned --emit artefakt -o m.tuned")
    assert code == 1 and "did you mean artifact?" in text


def test_fixed_values_of_options_stand_in_the_help() -> None:
    shown = {
        option: parameter.metavar
        for words in ((), ("build",), ("inspect",), ("zoo",), ("bench",))
        for parameter in COMMANDS[words].params
        for option in parameter.opts
    }
    compile = CompileSettings.model_fields
    assert shown["--emit"].split("|") == [*EMIT]
    assert set(shown["--precision"].split("|")) == set(get_args(compile["numerics"].annotation))
    assert set(shown["--denormals"].split("|")) == set(get_args(compile["denormals"].annotation))
    assert shown["--stage"].split("|") == [*STAGES_TO_INSPECT]
    assert shown["--against"].removesuffix(",...").split("|") == [*ENGINES]
    assert shown["--form"] == "qdq|qoperator" and shown["--runner"] == "ray|local"


def test_options_stand_in_panels_and_every_output_has_a_short_name(say: Any) -> None:
    text = say("--help")[1]
    places = [text.find(f"\n{panel}:\n") for panel in ("Model", "Search", "Precision", "Target")]
    assert places[0] > 0 and places == sorted(places) and "\nAdvanced:\n" in text
    for path, command in COMMANDS.items():
        for parameter in command.params:
            assert ("--output" in parameter.opts) == ("-o" in parameter.opts), path


def test_quiet_prints_one_line_and_verbose_logs(say: Any) -> None:
    build = "build m.onnx --untuned -o m.tuned"
    code, text = say(f"{build} -q")
    assert code == 0 and text == "m.tuned: 0.0 % of the estimated time runs tuned schedules\n"
    assert "settings that were given: {}" in say(f"{build} -v")[1]
    assert "all settings: " in say(f"{build} -vv")[1]
    assert "settings that were given" not in say(build)[1]


@pytest.mark.parametrize("listing", ["zoo", "docs"])
def test_listings_are_json_too(say: Any, listing: str) -> None:
    code, text = say(f"{listing} --json -")
    assert code == 0
    names = [next(iter(item.values())) for item in json.loads(text)]
    lines = say(listing)[1].splitlines()
    assert [line.split()[0] for line in lines] == names and len(names) > 5
