"""Stores under conditions: one condition for a nest of vectors that are all there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor
from tunefarm import compiler
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.schedule.apply_schedule import lower

CHANNELS = 16
RANGES = {"h": ("1..19",), "w": ("1..37",)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution reads past the edge of a transposed one, whose result is filled there."""
    rng = np.random.default_rng(0)

    c = CHANNELS
    nodes = [
        node("Conv", "x spread", "a"),
        node("ConvTranspose", "a doubled", "s", strides=[2, 2]),
        node("Conv", "s taps", pads=[1, 1, 1, 1]),
    ]
    shapes = {"spread": (c, 2, 1, 1), "doubled": (c, c, 2, 2), "taps": (c, c, 3, 3)}
    weights = {n: rng.standard_normal(s).astype(np.float32) / 5 for n, s in shapes.items()}
    path = tmp_path_factory.mktemp("edge") / "net.onnx"
    onnx.save(model_of(nodes, [tensor("x", [1, 2, "h", "w"])], constants=weights), path)
    return path


def test_vectors_that_are_there_are_stored_without_conditions(model: Path) -> None:
    compiled = compile_model(model, lambda _: None, shapes=RANGES)
    found = 0
    for call in compiled.program.calls:
        if isinstance(call, KernelCall) and {"fill", "conv_transpose"} <= {*call.operators}:
            nest = lower(call.kernel, compiled.schedules[call.key].used.schedule)
            verify_loops(nest)
            output = call.kernel.output.name
            lines = [line.strip() for line in format_loops(nest).splitlines()]
            stores = [line for line in lines if line.startswith(f"{output}[")]
            assert any("select" in line for line in stores)
            assert any("select" not in line for line in stores)
            found += 1
    assert found


@pytest.mark.parametrize(
    ("height", "width"), [(1, 1), (2, 37), (19, 8), (7, 15), (19, 16), (18, 17)]
)
def test_results_are_those_of_onnxruntime(model: Path, height: int, width: int) -> None:
    executable = compiler.build(model, shapes=RANGES)
    executable.run({"x": np.full((1, 2, 19, 37), np.nan, np.float32)})
    x = np.random.default_rng(width).standard_normal((1, 2, height, width))
    inputs = {"x": x.astype(np.float32)}
    expected: Any = onnxruntime.InferenceSession(model).run(None, inputs)[0]
    found: Any = executable.run(inputs)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
