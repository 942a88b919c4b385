"""Values of inputs as commands take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tunefarm
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 6] x, int64 sr, float[1] gain) => (float[p, q] y)
<int64 rate = {16000}, int64[2] wide = {3, 4}, int64[2] tall = {4, 3}> {
    is = Equal (sr, rate)
    a = If (is) <then_branch = t () => (float[p, q] u) { u = Reshape (x, wide) },
                 else_branch = e () => (float[p, q] v) { v = Reshape (x, tall) }>
    y = Mul (a, gain)
}"""


def test_typed_values_fix_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(parse_model(TEXT), tmp_path / "m.onnx")
    np.save(tmp_path / "gain.npy", np.array([2], np.float32))
    command = ["build", "--model", str(tmp_path / "m.onnx"), "--untuned"]
    command += ["--output", str(tmp_path / "m.tuned")]
    gain = f"gain={tmp_path / 'gain.npy'}"
    assert run_command(app, [*command, "--input", "sr=8000", "--input", gain]) == 0
    loaded = tunefarm.load(tmp_path / "m.tuned")
    x = np.ones((2, 6), np.float32)
    found = loaded.run({"x": x, "sr": np.array(8000)})["y"]
    np.testing.assert_array_equal(found, np.full((4, 3), 2, np.float32))
    for wrong in ("sr=fast", "sr=", "sr", "gain=missing.npy", "sr=1.5", "rate=1"):
        capsys.readouterr()
        assert run_command(app, [*command, "--input", wrong]) != 0
        assert wrong.partition("=")[0] in capsys.readouterr().err
