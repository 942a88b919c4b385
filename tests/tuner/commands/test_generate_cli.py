"""`tune generate` and `tune bench --generate`: what they print, and what they refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import onnx
import pytest

from tests.compiler.decoders import decoder
from tunefarm import compiler
from tunefarm.compiler.generation import generate
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

SHAPES = {
    "batch_size": "1..2",
    "sequence_length": "1..4",
    "past_sequence_length": "0..31",
    "total_sequence_length": "1..35",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder, and what is built of it."""
    path = tmp_path_factory.mktemp("generate")
    onnx.save(decoder("gqa"), path / "decoder.onnx")
    shapes = {name: (text,) for name, text in SHAPES.items()}
    compiler.build(path / "decoder.onnx", shapes=shapes).save(path / "decoder.tuned")
    return path


def test_tokens_are_printed_as_ids(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(folder / "decoder.tuned")
    expected = generate(file, [1, 5, 9], max_tokens=6)[0]
    assert run_command(app, ["generate", file, "--prompt-ids", "1,5,9", "--max-tokens", "6"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{','.join(map(str, expected))}\n"
    assert "tokens of the prompt" in shown.err


def test_prompts_of_a_batch_are_lines_and_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(folder / "decoder.tuned")
    command = ["generate", file, "--prompt-ids", "1,5", "--prompt-ids", "7,8", "--max-tokens", "4"]
    assert run_command(app, command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert run_command(app, [*command, "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [",".join(map(str, row)) for row in result["tokens"]] == lines
    assert result["prompt_tokens"] == 4


class _Letters:
    """A tokenizer of letters: words are numbered from a, and written from Ā on."""

    @staticmethod
    def from_file(file: str) -> _Letters:
        if Path(file).read_text(encoding="utf-8") != "letters":
            raise ValueError("expected letters")
        return _Letters()

    def encode(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(ids=[ord(letter) - ord("a") for letter in text])

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(token + ord("Ā")) for token in tokens)


def test_text_goes_through_the_tokenizer(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("tokenizers")
    package.__dict__["Tokenizer"] = _Letters
    monkeypatch.setitem(sys.modules, "tokenizers", package)
    file, tokenizer = str(folder / "decoder.tuned"), folder / "tokenizer.json"
    tokenizer.write_text("letters", encoding="utf-8")
    command = ["generate", file, "--prompt", "bfj", "--max-tokens", "5"]
    assert run_command(app, command) == 0
    expected = _Letters().decode(generate(file, [1, 5, 9], max_tokens=5)[0])
    assert capsys.readouterr().out == f"{expected}\n"
    tokenizer.write_text("{}", encoding="utf-8")
    assert run_command(app, command) == 1
    assert "tokenizer.json is no tokenizer: expected letters" in capsys.readouterr().err


def test_text_without_the_package_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert run_command(app, ["generate", str(folder / "decoder.tuned"), "--prompt", "a"]) == 1
    assert "--prompt needs the package tokenizers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "give either --prompt-ids or --prompt"),
        (["--prompt-ids", "1", "--prompt", "a"], 2, "give either --prompt-ids or --prompt"),
        (["--prompt-ids", "1,x"], 2, "give token ids separated by commas"),
        (["--prompt-ids", "1", "--top-p", "2"], 1, "top_p is 2.0"),
        (["--prompt-ids", "1,2", "--max-tokens", "99"], 1, "caches, which hold 32"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    message: str,
) -> None:
    assert run_command(app, ["generate", str(folder / "decoder.tuned"), *options]) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert not shown.out


@pytest.mark.alone
def test_a_generation_is_timed_next_to_onnxruntime(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = [part for name, text in SHAPES.items() for part in ("--shape", f"{name}={text}")]
    command = ["bench", str(folder / "decoder.onnx"), *shapes, "--untuned", "--generate"]
    assert run_command(app, [*command, "6,5", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    ours, other = result["engines"]
    assert (ours["engine"], other["engine"]) == ("tunefarm", "onnxruntime")
    assert other["same"] == 5
    assert min(ours["share"], ours["first_s"], ours["decode_per_s"]) > 0
    assert result["step_bytes"] > 0 < result["read_bytes_per_s"]
    assert run_command(app, [*command, "6"]) == 1
    assert "--generate 6: give tokens of the prompt" in capsys.readouterr().err
