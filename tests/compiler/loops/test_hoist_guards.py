"""Stores under conditions: one condition for a nest of vectors that are all there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

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

    def taps(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 5, name)

    c = CHANNELS
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "spread"], ["a"]),
            helper.make_node("ConvTranspose", ["a", "doubled"], ["s"], strides=[2, 2]),
            helper.make_node("Conv", ["s", "taps"], ["y"], pads=[1, 1, 1, 1]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, c, "p", "q"])],
        [
            taps("spread", c, 2, 1, 1),
            taps("doubled", c, c, 2, 2),
            taps("taps", c, c, 3, 3),
        ],
    )
    path = tmp_path_factory.mktemp("edge") / "net.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
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
