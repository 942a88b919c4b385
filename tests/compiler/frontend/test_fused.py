"""What onnxruntime's optimiser fuses computes what it computes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.frontend.contributed_models import (
    Values,
    assert_same,
    by_onnxruntime,
    by_us,
    model_of,
)
from tests.compiler.frontend.onnx_models import model as graph_of
from tests.compiler.frontend.onnx_models import node, tensor
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.pipeline import kernels_of

_RNG = np.random.default_rng(0)


def floats(*shape: int) -> Values:
    return _RNG.standard_normal(shape).astype(np.float32)


X = floats(2, 3, 8)
_IMAGE = {"x": floats(1, 4, 7, 9), "w": floats(6, 4, 3, 3), "b": floats(6)}
_SUM = {**_IMAGE, "z": floats(1, 6, 7, 9)}
_AROUND: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}

CASES: dict[str, tuple[str, dict[str, Values | None], dict[str, Any]]] = {
    "gelu": ("Gelu", {"x": X}, {}),
    "gelu of a sum": ("BiasGelu", {"x": X, "b": floats(8)}, {}),
    "gelu by tanh": ("FastGelu", {"x": X}, {}),
    "gelu by tanh of a sum": ("FastGelu", {"x": X, "b": floats(8)}, {}),
    "gelu by sigmoid": ("QuickGelu", {"x": X}, {}),
    "swish": ("QuickGelu", {"x": X}, {"alpha": 0.7}),
    "gate": ("GatedAdd", {"x": X, "z": floats(2, 3, 8), "g": floats(2, 3, 1)}, {}),
    "gemm": ("FusedGemm", {"a": floats(3, 5), "b": floats(5, 4)}, {"activation": "Relu"}),
    "gemm, leaky": (
        "FusedGemm",
        {"a": floats(5, 3), "b": floats(4, 5), "c": floats(4)},
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "transA": 1, "transB": 1},
    ),
    "gemm, hard": (
        "FusedGemm",
        {"a": floats(3, 5), "b": floats(5, 4)},
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4},
    ),
    "conv": ("FusedConv", {**_IMAGE}, {"activation": "Tanh", **_AROUND}),
    "conv of a sum": ("FusedConv", {**_SUM}, {"activation": "Relu", **_AROUND}),
    "conv, clipped": (
        "FusedConv",
        {**_SUM},
        {"activation": "Clip", "activation_params": [-0.5, 0.6], **_AROUND},
    ),
    "conv, hard": (
        "FusedConv",
        {**_IMAGE},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4], **_AROUND},
    ),
    "row": ("FusedMatMul", {"a": floats(5), "b": floats(5, 4)}, {"alpha": 2.0}),
    "turned": ("TransposeMatMul", {"a": floats(5, 7), "b": floats(5, 4)}, {"transA": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_operator_gives_what_onnxruntime_gives(case: str) -> None:
    operator, feeds, attributes = CASES[case]
    assert_same(model_of(operator, feeds, **attributes), feeds)


@pytest.mark.parametrize("flags", range(16))
def test_operands_of_products_may_be_turned_in_two_ways(flags: int) -> None:
    names = ("transA", "transB", "transBatchA", "transBatchB")
    attributes: dict[str, Any] = {name: flags >> place & 1 for place, name in enumerate(names)}
    feeds = {"a": floats(5, 5, 5), "b": floats(5, 5, 5)}
    assert_same(model_of("FusedMatMul", feeds, alpha=0.3, **attributes), feeds)


def test_factor_of_a_product_becomes_part_of_its_weights() -> None:
    feeds = {"a": floats(3, 5), "b": floats(5, 4)}
    model = model_of("FusedMatMul", feeds, constants=("b",), alpha=0.3)
    assert [node.operator for node in import_model_proto(model).nodes] == ["matmul"]
    assert_same(model, feeds)


def test_products_of_16_bit_integers_are_summed_in_32() -> None:
    feeds = {
        name: _RNG.integers(-30000, 30000, shape).astype(np.int16)
        for name, shape in (("a", (3, 5)), ("b", (5, 4)))
    }
    model = model_of("MatMulInteger16", feeds)
    np.testing.assert_array_equal(by_us(model, feeds)[0], by_onnxruntime(model, feeds)[0])


def test_what_only_graphics_processors_run_is_as_documented() -> None:
    feeds = {"x": X, "b": floats(8)}
    (found,) = by_us(model_of("BiasSplitGelu", feeds), feeds)
    left, right = np.split(feeds["x"] + feeds["b"], 2, axis=-1)
    gelu = {"r": np.ascontiguousarray(right)}
    expected = left * by_onnxruntime(model_of("Gelu", gelu), gelu)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    three = {**feeds, "s": floats(2, 3, 8)}
    (total,) = by_us(model_of("BiasAdd", three), three)
    np.testing.assert_allclose(total, X + three["b"] + three["s"], rtol=1e-6)
    (soft,) = by_us(model_of("BiasSoftmax", feeds, axis=2, is_inner_broadcast=1), feeds)
    exponential = np.exp(X + feeds["b"])
    expected = exponential / exponential.sum(-1, keepdims=True)
    np.testing.assert_allclose(soft, expected, rtol=1e-5)


def test_channels_last_convolution_is_the_other_one_turned() -> None:
    last = {
        "x": np.ascontiguousarray(_IMAGE["x"].transpose(0, 2, 3, 1)),
        "w": np.ascontiguousarray(_IMAGE["w"].transpose(0, 2, 3, 1)),
        "b": _IMAGE["b"],
    }
    (found,) = by_us(model_of("NhwcConv", last, **_AROUND), last)
    expected = by_onnxruntime(model_of("FusedConv", _IMAGE, **_AROUND), _IMAGE)[0]
    np.testing.assert_allclose(found.transpose(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "given"), [("Gemm", {}), ("FusedGemm", {"activation": "Relu"})]
)
def test_product_between_two_reshapes_is_fused_with_what_follows(
    operator: str, given: dict[str, Any]
) -> None:
    """As onnxruntime writes a product of three axes: in one kernel with its sums and gelu."""
    domain = "com.microsoft" if operator == "FusedGemm" else ""
    nodes = [
        node("Reshape", "x matrix", "m"),
        node(operator, "m w b", "p", domain=domain, transB=1, **given),
        node("Reshape", "p whole", "q"),
        node("Add", "q r", "s"),
        node("Gelu", "s", domain="com.microsoft"),
    ]
    shapes = {"matrix": np.array([-1, 16]), "whole": np.array([2, 5, 8])}
    constants = {"w": floats(8, 16), "b": floats(8), **shapes}
    inputs = [tensor("x", (2, 5, 16)), tensor("r", (2, 5, 8))]
    model = graph_of(nodes, inputs, constants=constants, domains={"com.microsoft": 1})
    feeds = {"x": floats(2, 5, 16), "r": floats(2, 5, 8)}
    assert_same(model, feeds)
    assert len(kernels_of(import_model_proto(model)).calls) == 1


def test_product_that_is_read_as_a_matrix_too_is_right() -> None:
    nodes = "m = Reshape x matrix; p = Gemm m w; Reshape p whole; t = Transpose p"
    constants = {"w": floats(16, 8), "matrix": np.array([-1, 16]), "whole": np.array([2, 5, 8])}
    inputs = [tensor("x", (2, 5, 16))]
    model = graph_of(nodes, inputs, ["y", "t"], constants, domains={"com.microsoft": 1})
    assert_same(model, {"x": floats(2, 5, 16)})
