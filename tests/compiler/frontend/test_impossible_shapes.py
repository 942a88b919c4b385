"""Tensors that cannot be: each model is refused while it is imported, with what is wrong."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model, tensor
from tunefarm.compiler.errors import LimitError, ShapeError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.tensor_type import Array


def refused(name: str, inputs: str, nodes: str, message: str, **weights: Array) -> Any:
    """Nodes from inputs `x[2,3] z[4]` to y, and part of the error that is expected."""
    found = re.findall(r"(\w+)\[([^]]*)\]", inputs)
    ports = [tensor(port, [int(extent) for extent in shape.split(",")]) for port, shape in found]
    return pytest.param(model(nodes, ports, constants=weights, opset=20), message, id=name)


def ones(*shape: int) -> npt.NDArray[np.float32]:
    return np.ones(shape, np.float32)


IMAGE = "x[1,3,8,8]"
CASES = [
    refused("negative_input", "x[-3,4]", "Relu x", "a negative dimension"),
    refused(
        "window_larger_than_data",
        "x[1,3,2,2]",
        "Conv x w",
        "a window of 3 does not fit into the padded size 2",
        w=ones(4, 3, 3, 3),
    ),
    refused("huge_input", f"x[{1 << 31},{1 << 31}]", "Relu x", "would take"),
    refused(
        "huge_product",
        f"x[{1 << 22},1] z[1,{1 << 22}]",
        "MatMul x z",
        "the result would take 70368744177664 bytes",
    ),
    refused(
        "huge_expand",
        "x[1]",
        f"Expand x [{1 << 32},{1 << 32}]",
        "the result would take 73786976294838206464 bytes",
    ),
    refused(
        "huge_constant",
        "x[1]",
        f"c = ConstantOfShape [{1 << 40},4]; Add x c",
        "the result would take 17592186044416 bytes",
    ),
    refused(
        "huge_pad",
        "x[2]",
        f"Pad x [{1 << 62},{1 << 62}]",
        "the result would take 36893488147419103240 bytes",
    ),
    refused("huge_resize", "x[1,1,8,8]", "Resize x _ [1,1,1e9,1e9]", "would take 10^20 bytes"),
    refused("huge_tile", "x[8,8]", f"Tile x [{1 << 40},{1 << 40}]", "the result would take"),
    refused(
        "bias_of_another_extent",
        "x[4,8]",
        "p = MatMul x w; Add p b",
        "the shapes [4, 3] and [4] do not broadcast",
        w=ones(8, 3),
        b=ones(4),
    ),
    refused(
        "residual_of_another_shape",
        f"{IMAGE} z[1,4,7,7]",
        "c = Conv x w; Add c z",
        "the shapes [1, 4, 6, 6] and [1, 4, 7, 7] do not broadcast",
        w=ones(4, 3, 3, 3),
    ),
    refused(
        "convolution_bias",
        IMAGE,
        "Conv x w b",
        "the bias must have the shape [4], not f32[3]",
        w=ones(4, 3, 3, 3),
        b=ones(3),
    ),
    refused(
        "batch_norm_of_other_channels",
        IMAGE,
        "c = Conv x w; BatchNormalization c s s s s",
        "f32[3] has not one entry per channel of f32[1, 4, 6, 6]",
        w=ones(4, 3, 3, 3),
        s=ones(3),
    ),
]


@pytest.mark.parametrize(("proto", "message"), CASES)
def test_a_tensor_that_cannot_be_is_refused_at_import(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises((ShapeError, LimitError)) as caught:
        import_model_proto(proto)
    assert message in caught.value.message
