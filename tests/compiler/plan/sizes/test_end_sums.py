"""Sums end at a size behind which what they add is 0, or both factors are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.frontend.onnx_models import model, tensor
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.attention import attention_of
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.kernels.printer import format_expression
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.pipeline import compile_model, kernels_of
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule, naive_schedule
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.tensor_type import Array

BATCH, LENGTH, FEATURES = 3, 37, 20
PROTO = model(
    "v = MatMul x w; turned = Transpose x perm=[0,2,1]; scores = MatMul x turned; "
    "weights = Softmax scores axis=-1; wrong = IsInf weights; "
    "safe = Where wrong zero weights; MatMul safe v",
    [tensor("x", ["batch", "length", FEATURES])],
    constants={
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


def test_queries_without_a_key_are_zero_at_every_size() -> None:
    proto = model(
        "turned = Transpose x perm=[0,2,1]; scores = MatMul x turned; "
        "masked = Add scores mask; weights = Softmax masked axis=-1; "
        "wrong = IsNaN weights; safe = Where wrong zero weights; MatMul safe x",
        [tensor("x", ["batch", "length", FEATURES]), tensor("mask", ["length", "length"])],
        constants={"zero": np.zeros((), np.float32)},
    )
    shapes = {"x": (f"batch:1..{BATCH}", f"length:1..{LENGTH}", FEATURES)}
    graph = import_model_proto(proto, shapes)
    executable = Executable(compile_model(graph).spec)
    calls = [call for call in kernels_of(graph).calls if isinstance(call, KernelCall)]
    assert any(attention_of(call.kernel) is not None for call in calls)
    rng = np.random.default_rng(0)
    for batch, length in ((1, 5), (3, LENGTH), (2, 16), (2, 1)):
        x = rng.standard_normal((batch, length, FEATURES)).astype(np.float32)
        mask = np.zeros((length, length), np.float32)
        mask[length // 2] = -np.inf
        mask[:, : length // 3] = -np.inf
        scores = np.matmul(x, x.transpose(0, 2, 1)) + mask
        raised = np.exp(scores - np.maximum(scores.max(axis=-1, keepdims=True), -1e30))
        expected = np.matmul(raised / np.maximum(raised.sum(axis=-1, keepdims=True), 1), x)
        found = executable.run({"x": x, "mask": mask})["y"]
        assert not found[:, length // 2].any()
        assert np.allclose(found, expected, atol=1e-4)


def test_sizes_that_must_be_equal_end_both_factors() -> None:
    proto = model(
        "left = Softmax a axis=-1; right = Relu b; MatMul left right",
        [tensor("a", [4, "p"]), tensor("b", ["q", FEATURES])],
        constants={},
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


CHANNELS, SIDE = 12, 7
PLANES = model(
    "both = Shape p start=0 end=2; rows = Concat both rest axis=0; "
    "values = Reshape p rows; norm = ReduceL2 values last keepdims=1; "
    "shape = Shape values; norms = Expand norm shape; q = Div values norms; "
    "turned = Transpose q perm=[0,2,1]; scores = MatMul q turned; "
    "weights = Softmax scores axis=-1; seen = MatMul weights values; "
    "whole = Shape p; Reshape seen whole",
    [tensor("p", ["batch", CHANNELS, "height", "width"])],
    constants={"rest": np.array([-1]), "last": np.array([-1])},
    opset=18,
)
OF_PLANES = import_model_proto(
    PLANES, {"height": (f"1..{SIDE}",), "width": ("1..5",), "batch": (3,)}
)


def test_attention_of_channels_ends_with_the_rows_of_planes() -> None:
    """Sums over pixels and sums for pixels alike, and nothing is put together before."""
    calls = [call for call in kernels_of(OF_PLANES).calls if isinstance(call, KernelCall)]
    assert not {name for call in calls for name in call.operators} & {"gather", "expand"}
    (kernel,) = (call.kernel for call in calls if "attention" in call.operators)
    parts = attention_of(kernel)
    assert parts is not None
    assert parts.columns.extent == parts.features.extent == SIDE * 5
    assert [format_expression(item) for item in parts.summed] == ["k // 5 < in2[0]"]
    assert "for k in 0..min(35, in2[0] * 5)" in format_loops(lower(kernel, naive_schedule()))
    blocks = format_loops(lower(kernel, default_schedule(kernel, host_target())))
    assert "for k.o in 0..min(" in blocks
    assert "for d.o in 0..min(" in blocks


@settings(max_examples=20, deadline=None)
@given(st.integers(1, SIDE), st.integers(1, 5), st.integers(0, 99))
def test_attention_of_channels_is_right_at_any_size(
    of_planes: Executable, height: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    of_planes.run({"p": np.full((3, CHANNELS, SIDE, 5), np.nan, np.float32)})
    p = rng.standard_normal((3, CHANNELS, height, width)).astype(np.float32)
    values = p.reshape(3, CHANNELS, -1)
    q = values / np.linalg.norm(values, axis=-1, keepdims=True)
    raised = np.exp(np.matmul(q, q.transpose(0, 2, 1)))
    expected = np.matmul(raised / raised.sum(axis=-1, keepdims=True), values)
    found = of_planes.run({"p": p})["y"]
    assert np.allclose(found, expected.reshape(p.shape), atol=1e-5)


@pytest.fixture(scope="module")
def of_planes() -> Executable:
    return Executable(compile_model(OF_PLANES).spec)


NORMALISED = model(
    "c = Conv x w pads=[1,1]; m = ReduceMean c axes; d = Sub c m; "
    "squares = Mul d d; v = ReduceMean squares axes; more = Add v one; "
    "n = Div d more; Conv n w pads=[1,1]",
    [tensor("x", [1, CHANNELS, "length"])],
    constants={
        "w": np.random.default_rng(0).standard_normal((CHANNELS, CHANNELS, 3)).astype(np.float32),
        "axes": np.array([2]),
        "one": np.ones((), np.float32),
    },
)


def test_means_of_what_convolutions_read_too_end_with_its_rows() -> None:
    graph = import_model_proto(NORMALISED, {"x": (1, CHANNELS, "length:1..999")})
    calls = [call for call in kernels_of(graph).calls if isinstance(call, KernelCall)]
    sums = [call.kernel for call in calls if "reduce_sum" in call.operators]
    assert len(sums) == 2
    for kernel in sums:
        assert "for r0 in 0..min(999, in" in format_loops(lower(kernel, naive_schedule()))
    assert all(call.kernel.limits for call in calls if "from_blocked" in call.operators)
    executable = Executable(compile_model(graph).spec)
    executable.run({"x": np.full((1, CHANNELS, 999), np.nan, np.float32)})
    for length in (1, 2, 17, 500):
        x = np.random.default_rng(length).standard_normal((1, CHANNELS, length)).astype(np.float32)
        (expected,) = exact_session(NORMALISED).run(None, {"x": x})
        assert np.allclose(executable.run({"x": x})["y"], expected, atol=1e-4)
