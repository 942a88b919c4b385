"""Sums of products end at a size behind which both factors are 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from compiler.frontend.import_onnx import import_model_proto
from compiler.kernels.kernel import KernelCall
from compiler.pipeline import compile_model, kernels_of
from compiler.runtime.execution.executable import Executable
from compiler.types.tensor_type import Array
from tests.compiler.frontend.onnx_models import model, tensor

BATCH, LENGTH, FEATURES = 3, 37, 20
PROTO = model(
    [
        make_node("MatMul", ["x", "w"], ["v"]),
        make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        make_node("MatMul", ["x", "turned"], ["scores"]),
        make_node("Softmax", ["scores"], ["weights"], axis=-1),
        make_node("IsNaN", ["weights"], ["wrong"]),
        make_node("Where", ["wrong", "zero", "weights"], ["safe"]),
        make_node("MatMul", ["safe", "v"], ["y"]),
    ],
    [tensor("x", ["batch", "length", FEATURES])],
    ["y"],
    {
        "w": np.random.default_rng(0).standard_normal((FEATURES, 8)).astype(np.float32),
        "zero": np.zeros((), np.float32),
    },
)
GRAPH = import_model_proto(PROTO, {"x": (f"batch:1..{BATCH}", f"length:1..{LENGTH}", FEATURES)})


def test_values_of_an_attention_are_computed_as_far_as_there_are_words() -> None:
    calls = [call for call in kernels_of(GRAPH).calls if isinstance(call, KernelCall)]
    (values,) = (
        call for call in calls if call.kernel.output.shape[-1] == 8 and call is not calls[-1]
    )
    assert "fill" in values.operators
    assert (8, LENGTH) in {(limit.stride, limit.extent) for limit in values.kernel.limits}


@pytest.fixture(scope="module")
def executable() -> Executable:
    return Executable(compile_model(GRAPH).spec)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, BATCH), st.integers(1, LENGTH), st.integers(0, 99))
def test_padding_of_either_factor_changes_nothing(
    executable: Executable, batch: int, length: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    executable.run({"x": np.full((BATCH, LENGTH, FEATURES), np.nan, np.float32)})
    x = rng.standard_normal((batch, length, FEATURES)).astype(np.float32)
    found = executable.run({"x": x})["y"]
    assert np.allclose(found, attention(x), atol=1e-4)


def attention(x: Array) -> Array:
    weights = next(i for i in PROTO.graph.initializer if i.name == "w")
    w = np.frombuffer(weights.raw_data, np.float32).reshape(weights.dims)
    scores = np.matmul(x, x.transpose(0, 2, 1))
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = raised / raised.sum(axis=-1, keepdims=True)
    return np.asarray(np.matmul(shares, np.matmul(x, w)), np.float32)


def test_sizes_that_must_be_equal_end_both_factors() -> None:
    proto = model(
        [
            make_node("Softmax", ["a"], ["left"], axis=-1),
            make_node("Relu", ["b"], ["right"]),
            make_node("MatMul", ["left", "right"], ["y"]),
        ],
        [tensor("a", [4, "p"]), tensor("b", ["q", FEATURES])],
        ["y"],
        {},
    )
    graph = import_model_proto(proto, {"p": ("1..9",), "q": ("1..9",)})
    calls = [call for call in kernels_of(graph).calls if isinstance(call, KernelCall)]
    ends = {call.output: {(x.stride, x.extent) for x in call.kernel.limits} for call in calls}
    assert {(1, 9)} in ends.values()  # the softmax
    assert {(FEATURES, 9)} in ends.values()  # what b is filled as
    rng = np.random.default_rng(0)
    a = rng.standard_normal((4, 5)).astype(np.float32)
    b = rng.standard_normal((5, FEATURES)).astype(np.float32)
    raised = np.exp(a)
    expected = np.matmul(raised / raised.sum(axis=1, keepdims=True), np.maximum(b, 0))
    executable = Executable(compile_model(graph).spec)
    assert np.allclose(executable.run({"a": a, "b": b})["y"], expected, atol=1e-5)
