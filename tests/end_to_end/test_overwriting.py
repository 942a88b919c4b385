"""Every command that writes refuses to write over what it reads, and changes nothing then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.db.store import Store
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

BUILD = "build --model m.onnx --output a.tuned --config c.toml"
BENCH = "bench --model m.onnx --db s.db --config c.toml"
LIBRARY = "c-header+shared-library"
TUNE = "--model m.onnx --config c.toml"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the commands read, by name."""
    folder = tmp_path_factory.mktemp("inputs")
    onnx.save(tiny_model(), folder / "m.onnx")
    Store.open(folder / "s.db").close()
    Store.open(folder / "tuning.db").close()
    np.save(folder / "x.npy", np.zeros((1, 3, 12, 12), np.float32))
    (folder / "c.toml").write_text("[database]\nurl = 's.db'\n")
    built = ["build", "--model", str(folder / "m.onnx"), "--untuned"]
    assert run_command(app, [*built, "--output", str(folder / "a.tuned")]) == 0
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "command",
    [
        f"{TUNE} --json m.onnx",
        f"{TUNE} --json c.toml",
        f"{TUNE} --json s.db",
        f"{TUNE} --db new.db --json new.db",
        f"{TUNE} --db new.db --json new.db-journal",
        f"{BUILD} --json m.onnx",
        f"{BUILD} --json a.tuned",
        f"{BUILD} --json s.db",
        f"{BUILD} --json c.toml",
        "build --model m.onnx --output tuning.db",
        "build --model m.onnx --untuned --emit object --output m.o --json m.h",
        f"build --model m.onnx --untuned --emit {LIBRARY} --output . --json libm_model.so",
        "run a.tuned --json a.tuned",
        "run a.tuned --output a.tuned",
        "run a.tuned --output o --json o",
        "run a.tuned --input x=x.npy --output x.npy",
        f"{BENCH} --json m.onnx",
        f"{BENCH} --json s.db",
        f"{BENCH} --json c.toml",
        "zoo mlp --output tuning.db",
        "report --html tuning.db",
        "report --db s.db --html s.db",
        "db list --json tuning.db",
        "db list --db s.db --json s.db-wal",
        "db export --db s.db --output s.db",
        "db export --db s.db --output s.db-journal",
        "db salvage s.db --output s.db",
        "db salvage s.db --output s.db-journal",
    ],
)
def test_no_command_writes_over_what_it_needs(
    command: str,
    inputs: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in inputs.items():
        (tmp_path / name).write_bytes(content)
    assert run_command(app, command.split()) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ") and ("overwritten" in line or "twice" in line)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == inputs
