"""Every command that a page shows is run, as it is typed, and does not fail.

Of each page, and of the README, the `sh` and `python` blocks are run in their order, in one folder
with a small tuned database; `console` and `py` blocks are shown only. The `text` blocks behind a
block are what it prints: of commands the words have to be there, the numbers may be others; of
Python every line.

The environment makes each tuning small; the commands are those of the page. Blocks of nothing but
`tune` commands run in this process, which has all imports done; others in a shell.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import pytest

from tunefarm.compiler.frontend.zoo import write_model
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.docs.pages import Pages

_FENCE = re.compile(
    r"^(?P<fence>```+)(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=fence)$", re.M | re.S
)
_ERROR = re.compile(r"^```console\n\$ tune (.*)\n(error: .*)\n```$", re.M)
_VERDICT = re.compile(r"^(whole model:|all kernels).*", re.M)
"""What a page shows of a measurement's outcome, which is another one in each run."""
_WORD = re.compile(r"\b[A-Za-z_]{3,}\b")
_SMALL = {
    "TUNEFARM_SEARCH__TRIALS_PER_TASK": "1",
    "TUNEFARM_SEARCH__BATCH_SIZE": "3",
    "TUNEFARM_MEASURE__RUNNER": "local",
    "TUNEFARM_MEASURE__OVERLAP": "always",
    "TUNEFARM_MEASURE__SAMPLES": "4",
    "TUNEFARM_MEASURE__MIN_SAMPLE_SECONDS": "0.0002",
    "TUNEFARM_MEASURE__UNSTABLE_ABOVE": "1.0",
}
_RUN = ("sh", "python")
_LIMIT = 240.0  # seconds of one block
MODEL = "mlp"
LONG = (
    "building",
    "commands",
    "debugging",
    "doctor",
    "farm",
    "generation",
    "quantization",
    "running",
    "schedules",
    "sizes",
    "transformers",
    "tuning",
    "tutorial",
    "verify",
)
"""Pages whose commands start Ray or take long: `pytest -m nightly -k
commands_of_the_page_run`."""
REAL = re.compile("squeezenet1_1|resnet18")
"""The models of the tutorial and the README, for which `MODEL` stands in the ordinary run."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page; `shown` is the text that the page says it prints."""

    language: str
    text: str
    shown: str = ""

    def check(self, printed: str) -> None:
        """Raise AssertionError if it did not print what the page shows."""
        if self.language == "python":
            missing = set(self.shown.splitlines()) - set(printed.splitlines())
        else:
            shown = _VERDICT.sub(r"\1", self.shown)
            missing = set(_WORD.findall(shown)) - set(_WORD.findall(printed))
        assert not missing, f"{sorted(missing)} is not printed by\n{self.text}\nbut\n{printed}"


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks that run, each with the `text` blocks behind it."""
    block: Block | None = None
    for found in _FENCE.finditer(page):
        if found["language"] in _RUN:
            if block is not None:
                yield block
            block = Block(found["language"], found["text"])
        elif found["language"] == "text" and block is not None:
            block = replace(block, shown=block.shown + found["text"])
    if block is not None:
        yield block


def errors_of(page: str) -> list[tuple[str, str]]:
    """Commands that a page shows with the one line of their error."""
    return _ERROR.findall(page)


TEXTS = dict(Pages())
README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
TEXTS["README"] = re.sub(
    "^<!-- test command -->.*?^<!-- end of test command -->", "", README, flags=re.M | re.S
)
# The environment is the one that the tests run in, where OpenVINO need not be.
TEXTS["README"] = re.sub(
    "^python3 -m venv .*(?=tune zoo)|,openvino", "", TEXTS["README"], flags=re.M
)
PAGES = {name: list(blocks_of(REAL.sub(MODEL, text))) for name, text in TEXTS.items()}


def _marked(name: str) -> object:
    """The page as a parameter; what takes long is for the night."""
    return pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name


@pytest.fixture(scope="session")
def prepared(folder_of_the_run: Path) -> Path:
    """A folder with `mlp.onnx` and `tuning.db`, which the first of several processes makes."""
    folder, made = folder_of_the_run / "prepared", folder_of_the_run / "prepared.made"
    with (folder_of_the_run / "prepared.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                for variable, value in _SMALL.items():
                    patch.setenv(variable, value)
                patch.setenv("TUNEFARM_SEARCH__TRIALS_PER_TASK", "3")
                model, db = f"{MODEL}.onnx", "tuning.db"
                zoo, tune = ["zoo", "mlp", "--output", model], ["--model", model, "--db", db]
                _run_here([zoo, [*tune, "--config", "ci"]])
            made.touch()
    return folder


@pytest.mark.parametrize("name", [_marked(name) for name, blocks in PAGES.items() if blocks])
def test_commands_of_the_page_run(
    name: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    if name == "README":
        (tmp_path / "tuning.db").unlink()  # a newcomer has none
    monkeypatch.chdir(tmp_path)
    for variable, value in _SMALL.items():
        monkeypatch.setenv(variable, value)
    if name in ("README", "tutorial"):
        # Kernels count as tuned of which two schedules are tried; a noisy trial is made again.
        monkeypatch.setenv("TUNEFARM_SEARCH__TRIALS_PER_TASK", "5")
    for block in PAGES[name]:
        commands = plain_commands(block)
        printed = run(block, tmp_path) if commands is None else _run_here(commands)
        block.check(printed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["README", "tutorial"])
def test_commands_run_with_their_own_model(name: str, tmp_path: Path) -> None:
    """`pytest -m nightly -k own_model`: as typed, ten minutes each."""
    for block in blocks_of(TEXTS[name]):
        block.check(run(block, tmp_path, {}, limit=1800.0))


@pytest.fixture(scope="module")
def with_mistakes(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of it, with files that commands refuse."""
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    write_model("encoder", folder / "encoder.onnx", dynamic=True)
    for name, opset, node in (
        ("cube", '"my.domain" : 1', "my.domain.Cube (x)"),
        ("jpeg", "", "ImageDecoder (x)"),
    ):
        given, made = ("uint8[99]", "uint8[h,w,3]") if name == "jpeg" else ("float[3]", "float[3]")
        imports = ", ".join(filter(None, ('"" : 20', opset)))
        model = onnx.parser.parse_model(
            f"<ir_version: 8, opset_import: [{imports}]> "
            f"g ({given} x) => ({made} y) {{ y = {node} }}"
        )
        onnx.save(model, folder / f"{name}.onnx")
    (folder / "broken.tuned").write_text("no model\n")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / "pointer.onnx").write_text(pointer)
    (folder / "half.db").write_bytes((folder / "tuning.db").read_bytes()[:5000])
    return folder


@pytest.mark.parametrize(("command", "error"), errors_of(TEXTS["errors"]))
def test_errors_are_as_the_page_says(
    command: str,
    error: str,
    with_mistakes: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(with_mistakes)
    assert run_command(app, shlex.split(command)) in (1, 2)
    expected = ".*".join(map(re.escape, error.split("…")))
    assert re.fullmatch(expected, capsys.readouterr().err.strip())


def plain_commands(block: Block) -> list[list[str]] | None:
    """The arguments of each command if all are of `tune` and need no shell."""
    if block.language != "sh":
        return None
    lines = block.text.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    text = "".join(word for command in commands for word in command)
    if set(text) & set("|&;<>$`*()~") or any(words[:1] not in ([], ["tune"]) for words in commands):
        return None
    return [words[1:] for words in commands if words]


def _run_here(commands: list[list[str]]) -> str:
    printed = io.StringIO()
    for arguments in commands:
        with redirect_stdout(printed), redirect_stderr(printed):
            code = run_command(app, arguments)
        assert code == 0, f"tune {shlex.join(arguments)}\nfailed:\n{printed.getvalue()}"
    return printed.getvalue()


def run(
    block: Block, folder: Path, small: Mapping[str, str] = _SMALL, limit: float = _LIMIT
) -> str:
    """Run a block in a folder, in at most so many seconds; what it prints."""
    shell = ["bash", "-euo", "pipefail", "-c", block.text]
    python = [sys.executable, "-c", block.text]
    ran = subprocess.run(
        shell if block.language == "sh" else python,
        cwd=folder,
        env={
            **small,
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=limit,
    )
    assert ran.returncode == 0, f"{block.text}\nfailed:\n{ran.stdout}"
    return ran.stdout


def test_blocks_are_found_with_what_they_print() -> None:
    page = "```sh\na\n```\n\n```text\nout\n```\n\n```console\nno\n```\n```python\nb\n```\n"
    assert list(blocks_of(page)) == [Block("sh", "a\n", "out\n"), Block("python", "b\n")]


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="failed"):
        run(Block("sh", "false\ntrue\n"), tmp_path)


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("tune a --b 'c d'   # why\ntune e\n", [["a", "--b", "c d"], ["e"]]),
        ("tune a \\\n  --b\n", [["a", "--b"]]),
        ("tune a | grep b\n", None),
        ("tune $a\n", None),
        ("cc a.c\n", None),
    ],
)
def test_only_commands_without_a_shell_are_plain(
    text: str, commands: list[list[str]] | None
) -> None:
    assert plain_commands(Block("sh", text)) == commands


@pytest.mark.parametrize(
    ("language", "shown", "printed", "fits"),
    [
        ("sh", "12 trials of matmul", "3 trials of matmul_add, matmul", True),
        ("sh", "12 trials failed", "3 trials", False),
        ("python", "for k in 0..4:\n", "for k in 0..4:\n  rest\n", True),
        ("python", "for k in 0..4:\n", "for k in 0..8:\n", False),
    ],
)
def test_what_a_page_shows_is_compared(language: str, shown: str, printed: str, fits: bool) -> None:
    block = Block(language, "", shown)
    if fits:
        block.check(printed)
    else:
        with pytest.raises(AssertionError, match="is not printed"):
            block.check(printed)
