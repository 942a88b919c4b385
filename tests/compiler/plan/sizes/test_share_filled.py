"""Layers of one shape are one kernel, whether a window reads behind their results or not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor
from tests.onnxruntime_session import assert_agrees
from tests.targets import target_named
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import KernelCall, KernelProgram
from tunefarm.compiler.pipeline import kernels_of

CHANNELS = 16
SHAPES = {"x": ("n:1..2", CHANNELS, "h:1..30", "w:1..30")}


def network(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """These nodes over x; w0, w1, … are 3x3 filters."""
    rng = np.random.default_rng(0)
    weights = {
        f"w{number}": (rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) / 12).astype(np.float32)
        for number in range(3)
    }
    x = tensor("x", ["n", CHANNELS, "h", "w"])
    return model_of(list(nodes), [x], constants=weights)


def program(model: onnx.ModelProto) -> KernelProgram:
    return kernels_of(import_model_proto(model, SHAPES), target_named("x86-64-v4"))


def check_results(model: onnx.ModelProto) -> None:
    executable = compiler.build(import_model_proto(model, SHAPES))
    rng = np.random.default_rng(1)
    for images, height, width in ((1, 1, 1), (2, 30, 30), (2, 5, 30), (1, 9, 8), (1, 30, 29)):
        x = rng.standard_normal((images, CHANNELS, height, width)).astype(np.float32)
        assert_agrees(executable.run, model, {"x": x}, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def convolutions() -> onnx.ModelProto:
    """Nobody reads behind the result of the second, as it does behind that of the first."""
    return network(
        node("Conv", "x w0", "c0", pads=[1, 1, 1, 1]),
        node("Relu", "c0", "r0"),
        node("Conv", "r0 w1", "c1", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1"),
        node("Softmax", "r1", axis=1),
    )


def test_convolutions_of_one_shape_are_one_kernel(convolutions: onnx.ModelProto) -> None:
    calls = [call for call in program(convolutions).calls if isinstance(call, KernelCall)]
    assert len({call.key for call in calls if "conv" in call.operators}) == 1


def test_what_is_filled_for_nobody_changes_no_result(convolutions: onnx.ModelProto) -> None:
    check_results(convolutions)


def test_what_is_filled_with_something_else_stays_apart() -> None:
    """Maxima read -inf behind the second convolution's result, that one 0 behind the first's."""
    model = network(
        node("Conv", "x w0", "c0", pads=[1, 1, 1, 1]),
        node("Conv", "c0 w1", "c1", pads=[1, 1, 1, 1]),
        node("MaxPool", "c1", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("MaxPool", "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    )
    calls = [call for call in program(model).calls if isinstance(call, KernelCall)]
    assert len({call.key for call in calls if "conv" in call.operators}) == 2
    check_results(model)
