"""Copies with padding, of dynamic sizes, decide per row and by loop bounds, not for each vector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor
from tunefarm import compiler
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.types.numerics import Algorithm

CHANNELS = 32
RANGES = {"h": ("16..41",), "w": ("16..41",)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of stride 2 reads a 3x3 convolution: of an odd number of rows not the last one."""
    rng = np.random.default_rng(0)
    taps = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 17
    nodes = [
        node("Conv", "x taps", "sums", pads=[1, 1, 1, 1]),
        node("Relu", "sums", "relu"),
        node("MaxPool", "relu", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    path = tmp_path_factory.mktemp("pooled") / "net.onnx"
    x = tensor("x", [1, CHANNELS, "h", "w"])
    onnx.save(model_of(nodes, [x], constants={"taps": taps}), path)
    return path


def test_what_a_pool_of_stride_2_reads_is_computed_by_winograd(model: Path) -> None:
    compiled = compile_model(model, lambda _: None, shapes=RANGES)
    (call,) = (
        call
        for call in compiled.program.calls
        if isinstance(call, KernelCall) and "relu" in call.operators
    )
    schedule = compiled.schedules[call.key].used.schedule
    assert schedule.algorithm is Algorithm.winograd(4)
    nest = lower(call.kernel, schedule)
    verify_loops(nest)
    stores = [line for line in format_loops(nest).splitlines() if line.strip().startswith("pad[")]
    assert stores
    assert not any("select" in line for line in stores)


@pytest.mark.parametrize(("height", "width"), [(16, 41), (17, 16), (40, 21), (41, 41), (33, 18)])
def test_results_are_those_of_a_static_build(model: Path, height: int, width: int) -> None:
    executable = compiler.build(model, shapes=RANGES)
    x = np.random.default_rng(height).standard_normal((1, CHANNELS, height, width))
    inputs = {"x": x.astype(np.float32)}
    large = np.full((1, CHANNELS, 41, 41), np.nan, np.float32)
    executable.run({"x": large})  # what an arena holds from before is in no result
    static = compiler.build(model, shapes={"h": (height,), "w": (width,)}, numerics="strict")
    ours, expected = executable.run(inputs)["y"], static.run(inputs)["y"]
    assert isinstance(ours, np.ndarray)
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-3)
