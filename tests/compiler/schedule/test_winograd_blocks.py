"""Winograd's form where not even one row of tiles fits the stack: rows are cut into columns."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import tensor
from tunefarm import compiler
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.types.numerics import Algorithm
from tunefarm.compiler.types.tensor_type import Array

CHANNELS, OUTPUTS, WIDE = 96, 24, 230


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    taps = rng.standard_normal((OUTPUTS, CHANNELS, 3, 3)).astype(np.float32) / 30
    spread = rng.standard_normal((CHANNELS, 2, 1, 1)).astype(np.float32)
    nodes = "wide = Conv x spread; sums = Conv wide taps pads=[1,1,1,1]; Relu sums"
    path = tmp_path_factory.mktemp("wide") / "net.onnx"
    weights: dict[str, Array] = {"spread": spread, "taps": taps}
    onnx.save(model_of(nodes, [tensor("x", [1, 2, "h", "w"])], constants=weights), path)
    return path


@pytest.mark.parametrize(
    "shapes", [{"h": (23,), "w": (WIDE,)}, {"h": ("1..26",), "w": (f"1..{WIDE}",)}]
)
def test_wide_planes_are_computed_by_winograd(model: Path, shapes: Any) -> None:
    compiled = compile_model(model, lambda _: None, shapes=shapes)
    calls = [call for call in compiled.program.calls if isinstance(call, KernelCall)]
    used = [
        compiled.schedules[call.key].used.schedule for call in calls if "relu" in call.operators
    ]
    assert [schedule.algorithm for schedule in used] == [Algorithm.winograd(4)]


@pytest.mark.parametrize("threads", [1, 2])
def test_any_size_gives_what_onnxruntime_gives(model: Path, threads: int) -> None:
    bounds = {"h": ("1..26",), "w": (f"1..{WIDE}",)}
    dynamic = compiler.build(model, shapes=bounds, threads=threads)
    static = compiler.build(model, shapes={"h": (26,), "w": (WIDE,)}, threads=threads)
    other = onnxruntime.InferenceSession(model)
    dynamic.run({"x": np.full((1, 2, 26, WIDE), np.nan, np.float32)})  # no result has any of it
    rng = np.random.default_rng(0)
    for height, width in product((1, 7, 8, 9, 26), (1, 3, 31, 32, 33, 64, 223, WIDE)):
        x = rng.standard_normal((1, 2, height, width)).astype(np.float32)
        expected: Any = other.run(None, {"x": x})[0]
        for built in (dynamic, static) if x.shape[2:] == (26, WIDE) else (dynamic,):
            found: Any = built.run({"x": x})["y"]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
