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
    nodes = (
        "a = Conv x spread; s = ConvTranspose a doubled strides=[2,2]; Conv s taps pads=[1,1,1,1]"
    )
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


PART_RANGES = {"c": ("1..5",), "d": ("0..6",), "w": ("1..70",)}


def joined(axis: int, count: int) -> onnx.ModelProto:
    """Images [1, c, d, w], each shifted by another number, one behind the other along an axis."""
    shifts = {f"s{number}": np.array(number, np.float32) for number in range(count)}
    nodes = [node("Add", f"x s{number}", f"a{number}") for number in range(count)]
    names = " ".join(f"a{number}" for number in range(count))
    nodes.append(node("Concat", names, axis=axis))
    return model_of(nodes, [tensor("x", [1, "c", "d", "w"])], constants=shifts)


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize(("count", "forms"), [(2, 2), (4, 4), (6, 0)])
def test_parts_of_a_concat_are_stored_in_forms_of_their_own(
    axis: int, count: int, forms: int, tmp_path: Path
) -> None:
    path = tmp_path / "joined.onnx"
    onnx.save(joined(axis, count), path)
    compiled = compile_model(path, lambda _: None, shapes=PART_RANGES)
    (call,) = (call for call in compiled.program.calls if isinstance(call, KernelCall))
    nest = lower(call.kernel, compiled.schedules[call.key].used.schedule)
    verify_loops(nest)
    lines = [line.strip() for line in format_loops(nest).splitlines()]
    stores = [line for line in lines if line.startswith(f"{call.kernel.output.name}[")]
    alone = {line.split(" = ")[1] for line in stores if line.count("in0[") == 1}
    assert len(alone) >= forms
    executable = compiler.build(path, shapes=PART_RANGES)
    session = onnxruntime.InferenceSession(path)
    for shape in (1, 1, 1, 1), (1, 5, 6, 70), (1, 2, 3, 33), (1, 3, 0, 16), (1, 4, 5, 31):
        x = np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32)
        expected: Any = session.run(None, {"x": x})[0]
        found: Any = executable.run({"x": x})["y"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("padding", ["reflection", "border", "zeros"])
def test_choices_by_numbers_stay_choices(padding: str, tmp_path: Path) -> None:
    nodes = [node("GridSample", "x grid", mode="nearest", padding_mode=padding, align_corners=1)]
    path, ranges = tmp_path / "sampled.onnx", {"b": ("1..9",)}
    onnx.save(
        model_of(nodes, [tensor("x", [1, 1, "b", 8]), tensor("grid", [1, "b", 4, 2])], opset=20),
        path,
    )
    executable, session = compiler.build(path, shapes=ranges), onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    for size in (1, 4, 9):
        inputs = {
            "x": rng.standard_normal((1, 1, size, 8)).astype(np.float32),
            "grid": rng.uniform(-2, 2, (1, size, 4, 2)).astype(np.float32),
        }
        expected: Any = session.run(None, inputs)[0]
        np.testing.assert_array_equal(executable.run(inputs)["y"], expected)
