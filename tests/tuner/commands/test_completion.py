"""What shells complete: asked as they ask, and in a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunefarm.db.store import Store
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    for name in ("a.onnx", "b.onnx", "b.tuned", "own.toml", "nets/c.onnx", "tuning.db-journal"):
        (tmp_path / name).touch()
    return tmp_path


class Shell:
    """A bash that asks for what may stand at the end of a line."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def complete(self, line: str) -> list[str]:
        words = line.split(" ")
        self._monkeypatch.setenv("_TUNE_COMPLETE", "complete_bash")
        self._monkeypatch.setenv("COMP_WORDS", line)
        self._monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        assert run_command(app, []) == 0
        said = self._capsys.readouterr()
        assert said.err == ""
        return said.out.split()


@pytest.fixture
def shell(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    return Shell(capsys, monkeypatch)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("tune bu", ["build"]),
        ("tune build --require-t", ["--require-tuned"]),
        ("tune build --model b", []),  # files are the shell's
        ("tune --config q", ["quick"]),
        ("tune --config o", ["overnight"]),
        ("tune build --targets ho", ["host"]),
        ("tune build --targets zn", ["znver4", "znver5"]),
        ("tune build --emit a", ["artifact", "asm"]),
        ("tune build --precision b", ["bf16"]),
        ("tune b", ["build", "bench"]),
        ("tune build --dump-after plan_", ["plan_memory"]),
        ("tune inspect --stage l", ["loops", "llvm"]),
        ("tune bench --against open", ["openvino"]),
        ("tune zoo mobile", ["mobilenet_v2"]),
        ("tune zoo mlp --form ", ["qdq", "qoperator"]),
        ("tune docs runn", ["running"]),
        ("tune stop ", []),  # there is no database
    ],
)
def test_names_complete(shell: Shell, line: str, values: list[str]) -> None:
    assert shell.complete(line) == values


def test_jobs_of_the_database_complete(shell: Shell) -> None:
    with Store.open("own.db") as store:
        job = store.start_job("net", "hash", {}).id
    assert shell.complete("tune stop --db own.db ") == ["last", job]
    assert shell.complete(f"tune resume --db own.db {job[:3]}") == [job]
    assert shell.complete("tune report --db own.db --job l") == ["last"]
    Path("own.db").write_bytes(b"no database at all" * 100)
    assert shell.complete("tune stop --db own.db ") == []


def test_without_a_shell_that_asks_nothing_changes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("_TUNE_COMPLETE", raising=False)
    assert run_command(app, []) == 2
    assert "no model is given" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tune", "tunefarm"])
def test_a_real_bash_completes(folder: Path, name: str) -> None:
    """What `--show-completion` prints is read by the shell that it is typed in."""
    program = folder / "bin" / name
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nfrom tunefarm.tuner.commands.entry import main\n\nmain()\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    script = f"""
    source <({name} --show-completion) || exit 1
    COMP_WORDS=({name} build --emit "a") COMP_CWORD=3
    _{name}_completion {name}
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    paths = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout.split(), done.stderr) == (["artifact", "asm"], "")
