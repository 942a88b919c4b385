"""Attention in blocks of keys means what it means without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.schedule.small_kernels import f32, inputs_for, kernel_of
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import unary
from tunefarm.compiler.kernels.attention import attention_of, block_attention
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType

KEYS = 13


def _attention(zeroed: bool = False) -> FusedKernel:
    operands = [f32(2, 3, 5, 4), f32(2, 1, KEYS, 4), f32(2, 3, KEYS, 6), f32(3, 5, KEYS)]
    order: dict[str, Attribute] = {"perm": (0, 2, 1, 3), "scale": 0.5, "zeroed": zeroed}
    return kernel_of(operands, [("attention", ["x0", "x1", "x2", "x3"], order)])


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("keys", [1, 4, 7, KEYS])
def test_blocks_keep_the_meaning(keys: int, lanes: int, online: bool) -> None:
    kernel = _attention()
    blocked = block_attention(kernel, keys, lanes, online)
    verify_kernel(blocked)
    _assert_equal(blocked, kernel, inputs_for(kernel))


@pytest.mark.parametrize("online", [False, True])
def test_masked_keys_and_rows_are_as_in_the_spelled_out_form(online: bool) -> None:
    kernel = _attention()
    mask = np.zeros((3, 5, KEYS), np.float32)
    mask[:, 1, :8] = -np.inf  # two whole blocks
    mask[:, 2, 3:] = -np.inf
    mask[:, 3] = -np.inf
    mask[:, 4, 5] = np.inf
    inputs = {**inputs_for(kernel), "in3": mask}
    undefined = np.isnan(np.asarray(evaluate_kernel(kernel, inputs), np.float32))
    assert undefined.any(axis=(0, 2, 3)).tolist() == [False, False, False, True, True]
    _assert_equal(block_attention(kernel, 4, 4, online), kernel, inputs)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("value", [1.0, np.nan])
def test_zeroed_weights_are_multiplied_as_zeros(value: float, online: bool) -> None:
    kernel = _attention(zeroed=True)
    mask = np.zeros((3, 5, KEYS), np.float32)
    mask[:, 1, :8] = -np.inf
    mask[:, 2] = -np.inf
    mask[:, 3, 2], mask[:, 4, 5] = np.inf, np.nan
    inputs = {**inputs_for(kernel), "in3": mask}
    inputs["in2"][1, 2, 7] = value  # with which zeros are multiplied, too
    plain = np.asarray(evaluate_kernel(kernel, inputs), np.float32)
    assert not plain[0, 2:].any()
    assert plain[:, :2, :2].all()
    assert np.isnan(plain[1, :, 2]).all() == np.isnan(value)
    _assert_equal(block_attention(kernel, 4, 4, online), kernel, inputs)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("sink", [-np.inf, -3.0, 0.0, 5.0, 200.0])
def test_a_sink_is_a_score_without_a_value(sink: float, online: bool) -> None:
    operands = [
        f32(2, 3, 5, 4),
        f32(2, 3, KEYS, 4),
        f32(2, 3, KEYS, 6),
        f32(3, 5, KEYS),
        f32(3, 1, 1),
    ]
    names = [f"x{number}" for number in range(5)]
    kernel = kernel_of(operands, [("attention", names, {"sink": True})])
    inputs = inputs_for(kernel)
    inputs["in3"][:, 1, :8] = -np.inf  # two whole blocks
    inputs["in4"][...] = sink
    found = np.asarray(evaluate_kernel(kernel, inputs), np.float32)
    query, key, value, mask, column = (inputs[f"in{n}"].astype(np.float64) for n in range(5))
    scores = query @ key.swapaxes(2, 3) + mask
    joined = np.concatenate([scores, np.broadcast_to(column, (2, 3, 5, 1))], axis=3)
    weights = np.exp(joined - joined.max(axis=3, keepdims=True))
    weights /= weights.sum(axis=3, keepdims=True)
    np.testing.assert_allclose(found, weights[..., :KEYS] @ value, rtol=1e-5, atol=1e-6)
    _assert_equal(block_attention(kernel, 4, 4, online), kernel, inputs)


def _assert_equal(found: FusedKernel, kernel: FusedKernel, inputs: dict[str, Array]) -> None:
    one, other = (np.asarray(evaluate_kernel(k, inputs), np.float32) for k in (found, kernel))
    np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6, strict=True)


def test_other_kernels_are_no_attention() -> None:
    kernel = _attention()
    assert attention_of(kernel) is not None
    scores, largest, exponential, *rest = kernel.stages
    other = replace(exponential, body=unary("sigmoid", exponential.body))
    assert attention_of(replace(kernel, stages=(scores, largest, other, *rest))) is None
    softmax = kernel_of([f32(3, 7)], [("softmax", ["x0"], {"axis": 1})])
    assert attention_of(softmax) is None
    with pytest.raises(ScheduleError, match="no attention"):
        block_attention(softmax, 1, 1, False)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("bounds", [(9,), (1,), (9, 3), (1, -2)])
def test_blocks_keep_the_bounds_of_keys(bounds: tuple[int, ...], online: bool) -> None:
    operands = [f32(2, 5, 4), f32(2, KEYS, 4), f32(2, KEYS, 6)]
    operands.append(TensorType(DType.I64, (len(bounds),)))
    kernel = kernel_of(operands, [("attention", ["x0", "x1", "x2", "x3"], {"causal": True})])
    parts = attention_of(kernel)
    assert parts is not None
    assert len(parts.seen) == len(bounds)
    inputs = {**inputs_for(kernel), "in3": np.array(bounds, np.int64)}
    places = np.arange(KEYS) - np.arange(5)[:, None]
    seen = (places < bounds[0]) & (places >= bounds[-1] if len(bounds) > 1 else True)
    plain = [f32(2, 5, 4), f32(2, KEYS, 4), f32(2, KEYS, 6), TensorType(DType.BOOL, (5, KEYS))]
    masked = kernel_of(plain, [("attention", ["x0", "x1", "x2", "x3"], {})])
    expected = evaluate_kernel(masked, {**inputs, "in3": seen})
    np.testing.assert_allclose(
        np.asarray(evaluate_kernel(kernel, inputs)).astype(float),
        np.asarray(expected).astype(float),
        rtol=1e-5,
        atol=1e-6,
    )
    _assert_equal(block_attention(kernel, 4, 4, online), kernel, inputs)
