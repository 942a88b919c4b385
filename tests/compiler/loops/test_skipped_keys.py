"""Attention computes scores of the keys that queries see, not of all that there is room for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.loops.executed import executed, only
from tests.compiler.schedule.small_kernels import f32, inputs_for, kernel_of, run_kernel
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.ir import Allocate, For, Scope, Update, walk
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.sketches.attention import attention_sketches
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

FEATURES = 8


def _attention(queries: int, keys: int, since: int) -> FusedKernel:
    operands = [f32(queries, FEATURES), f32(keys, FEATURES), f32(keys, FEATURES)]
    operands.append(TensorType(DType.I64, (2,)))
    attributes: dict[str, Any] = {"scale": 0.5, "filled": 0, "since": since}
    return kernel_of(operands, [("attention", ["x0", "x1", "x2", "x3"], attributes)])


def _scores(kernel: FusedKernel, ends: tuple[int, ...], sketch: int) -> int:
    """How many scores the default schedule of a sketch computes, whose results are right."""
    target = host_target()
    chosen = attention_sketches(kernel, target, 1)[sketch]
    names = (choice.name for choice in chosen.choices)
    nest = lower(kernel, chosen.build(dict(zip(names, chosen.default, strict=True))))
    inputs = {**inputs_for(kernel), kernel.inputs[3].name: np.array(ends, np.int64)}
    found = interpret(nest, inputs)
    expected = np.asarray(evaluate_kernel(kernel, inputs))
    np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=1e-4, atol=1e-5)
    terms = only(nest, lambda item: isinstance(item, Update) and item.buffer.startswith("scores"))
    return executed(terms, inputs) // FEATURES


@pytest.mark.parametrize("sketch", [0, 1])
def test_a_step_computes_the_scores_of_the_keys_there_are(sketch: int) -> None:
    for room in (256, 1024):
        scores = _scores(_attention(1, room, -1), (41, 0), sketch)
        assert 41 <= scores <= 64


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("sketch", [0, 1])
def test_a_window_begins_where_its_first_key_is(sketch: int, queries: int) -> None:
    kernel = _attention(queries, 512, 1)
    for end, begin in ((201, 169), (512, 480), (32, 0), (20, -12)):
        scores = _scores(kernel, (end, begin), sketch)
        assert queries * (end - max(begin, 0)) <= scores <= queries * 192


@pytest.mark.parametrize("end", [1009, 1003, 41])
def test_values_are_copied_by_the_block_where_blocks_need_padding(end: int) -> None:
    """1,009 keys have no even blocks; what lies behind the last one of a run is not read as one."""
    operands = [f32(3, 16), f32(1009, 16), f32(1009, 16), TensorType(DType.I64, (2,))]
    attributes: dict[str, Any] = {"scale": 0.5, "filled": 0, "since": -1}
    kernel = kernel_of(operands, [("attention", ["x0", "x1", "x2", "x3"], attributes)])
    chosen = attention_sketches(kernel, host_target(), 1)[1]
    names = (choice.name for choice in chosen.choices)
    nest = lower(kernel, chosen.build(dict(zip(names, chosen.default, strict=True))))
    made = {item.memory.name: item for item in walk(nest.body) if isinstance(item, Allocate)}
    assert made["values"].scope is not Scope.WORKSPACE
    assert made["values"].memory.type.size < 512 * 16
    blocks = [item for item in walk(nest.body) if isinstance(item, For) and item.variable == "nb"]
    assert blocks and all(loop.limit is not None for loop in blocks)  # those of the run alone
    inputs = {**inputs_for(kernel), kernel.inputs[3].name: np.array((end, 0), np.int64)}
    expected = np.asarray(evaluate_kernel(kernel, inputs))
    for buffer in kernel.inputs[1:3]:
        inputs[buffer.name] = inputs[buffer.name].copy()
        inputs[buffer.name][..., end:, :] = np.nan
    found = interpret(nest, inputs)
    np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=1e-4, atol=1e-5)


def test_blocks_that_need_no_padding_are_preferred_where_keys_are_dynamic() -> None:
    operands = [f32(3, 16), f32(1000, 16), f32(1000, 16), TensorType(DType.I64, (2,))]
    attributes: dict[str, Any] = {"scale": 0.5, "filled": 0, "since": -1}
    dynamic = kernel_of(operands, [("attention", ["x0", "x1", "x2", "x3"], attributes)])
    static = kernel_of(operands[:3], [("attention", ["x0", "x1", "x2"], {"scale": 0.5})])
    target = replace(host_target(), vector_bytes=32)
    blocks = []
    for kernel in (dynamic, static):
        chosen = attention_sketches(kernel, target, 1)[1]
        names = [choice.name for choice in chosen.choices]
        blocks.append(chosen.default[names.index("keys")])
    assert blocks == [200, 256]


def _causal(queries: int, keys: int, bounds: int) -> FusedKernel:
    operands = [f32(queries, FEATURES), f32(keys, FEATURES), f32(keys, FEATURES)]
    operands.append(TensorType(DType.I64, (bounds,)))
    attributes: dict[str, Any] = {"scale": 0.5, "causal": True}
    return kernel_of(operands, [("attention", ["x0", "x1", "x2", "x3"], attributes)])


@pytest.mark.parametrize(("sketch", "block"), [(0, 16), (1, 64)])
def test_keys_above_the_diagonal_are_left_out(sketch: int, block: int) -> None:
    queries, keys = 16, 128
    kernel = _causal(queries, keys, 1)
    for past in (0, 24):
        seen = queries * past + queries * (queries + 1) // 2
        scores = _scores(kernel, (past + 1,), sketch)
        assert seen <= scores <= queries * (past + queries + block)


@pytest.mark.parametrize("sketch", [0, 1])
def test_keys_before_a_window_are_left_out(sketch: int) -> None:
    queries, past, window = 16, 112, 5
    kernel = _causal(queries, past + queries, 2)
    scores = _scores(kernel, (past + 1, past + 1 - window), sketch)
    assert queries * window <= scores <= queries * (queries + window + 32)


@settings(max_examples=10, deadline=None)
@given(
    queries=st.integers(1, 40),
    keys=st.integers(1, 150),
    last=st.integers(0, 60),
    window=st.one_of(st.none(), st.integers(1, 80)),
    choices=st.randoms(use_true_random=False),
)
def test_bounds_of_keys_mean_the_same_under_drawn_schedules(
    queries: int, keys: int, last: int, window: int | None, choices: Any
) -> None:
    kernel = _causal(queries, keys, 1 if window is None else 2)
    bounds = [last + 1] if window is None else [last + 1, last + 1 - window]
    inputs = {**inputs_for(kernel), kernel.inputs[3].name: np.array(bounds, np.int64)}
    expected = np.asarray(evaluate_kernel(kernel, inputs)).astype(float)
    sees_some = np.isfinite(expected).all(axis=1)  # a window may begin behind the last key
    for sketch in attention_sketches(kernel, host_target(), 1):
        schedule = sketch.build({c.name: choices.choice(c.values) for c in sketch.choices})
        found = run_kernel(kernel, schedule, inputs).astype(float)
        np.testing.assert_allclose(found[sees_some], expected[sees_some], rtol=1e-4, atol=1e-5)
