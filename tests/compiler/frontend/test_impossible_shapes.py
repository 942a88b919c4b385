"""Tensors that cannot be: each model is refused while it is imported, with what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from tests.compiler.frontend.onnx_models import integers, model, node, tensor
from tunefarm.compiler.errors import LimitError, ShapeError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.tensor_type import Array


@dataclass(frozen=True, slots=True)
class Refused:
    """Nodes from the inputs x and z to y, and part of the error that is expected."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    inputs: dict[str, list[int]]
    weights: dict[str, Array]
    message: str


def ones(*shape: int) -> npt.NDArray[np.float32]:
    return np.ones(shape, np.float32)


CASES = [
    Refused("negative_input", [node("Relu", "x")], {"x": [-3, 4]}, {}, "a negative dimension"),
    Refused(
        "window_larger_than_data",
        [node("Conv", "x w")],
        {"x": [1, 3, 2, 2]},
        {"w": ones(4, 3, 3, 3)},
        "a window of 3 does not fit into the padded size 2",
    ),
    Refused("huge_input", [node("Relu", "x")], {"x": [1 << 31, 1 << 31]}, {}, "would take"),
    Refused(
        "huge_product",
        [node("MatMul", "x z")],
        {"x": [1 << 22, 1], "z": [1, 1 << 22]},
        {},
        "the result would take 70368744177664 bytes",
    ),
    Refused(
        "huge_expand",
        [node("Expand", "x s")],
        {"x": [1]},
        {"s": integers(1 << 32, 1 << 32)},
        "the result would take 73786976294838206464 bytes",
    ),
    Refused(
        "huge_constant",
        [node("ConstantOfShape", "s", "c"), node("Add", "x c")],
        {"x": [1]},
        {"s": integers(1 << 40, 4)},
        "the result would take 17592186044416 bytes",
    ),
    Refused(
        "huge_pad",
        [node("Pad", "x p")],
        {"x": [2]},
        {"p": integers(1 << 62, 1 << 62)},
        "the result would take 36893488147419103240 bytes",
    ),
    Refused(
        "huge_resize",
        [node("Resize", "x _ s", mode="nearest")],
        {"x": [1, 1, 8, 8]},
        {"s": np.array([1, 1, 1e9, 1e9], np.float32)},
        "would take 10^20 bytes",
    ),
    Refused(
        "huge_tile",
        [node("Tile", "x r")],
        {"x": [8, 8]},
        {"r": integers(1 << 40, 1 << 40)},
        "the result would take",
    ),
    Refused(
        "bias_of_another_extent",
        [node("MatMul", "x w", "p"), node("Add", "p b")],
        {"x": [4, 8]},
        {"w": ones(8, 3), "b": ones(4)},
        "the shapes [4, 3] and [4] do not broadcast",
    ),
    Refused(
        "residual_of_another_shape",
        [node("Conv", "x w", "c"), node("Add", "c z")],
        {"x": [1, 3, 8, 8], "z": [1, 4, 7, 7]},
        {"w": ones(4, 3, 3, 3)},
        "the shapes [1, 4, 6, 6] and [1, 4, 7, 7] do not broadcast",
    ),
    Refused(
        "convolution_bias",
        [node("Conv", "x w b")],
        {"x": [1, 3, 8, 8]},
        {"w": ones(4, 3, 3, 3), "b": ones(3)},
        "the bias must have the shape [4], not f32[3]",
    ),
    Refused(
        "batch_norm_of_other_channels",
        [node("Conv", "x w", "c"), node("BatchNormalization", "c s s s s")],
        {"x": [1, 3, 8, 8]},
        {"w": ones(4, 3, 3, 3), "s": ones(3)},
        "f32[3] has not one entry per channel of f32[1, 4, 6, 6]",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_tensor_that_cannot_be_is_refused_at_import(case: Refused) -> None:
    inputs = [tensor(name, shape) for name, shape in case.inputs.items()]
    proto = model(case.nodes, inputs, constants=case.weights, opset=20)
    with pytest.raises((ShapeError, LimitError)) as caught:
        import_model_proto(proto)
    assert case.message in caught.value.message
