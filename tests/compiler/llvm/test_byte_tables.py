"""Vectors looked up in tables are what single loads give, on every target."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.schedule.guarded_run import run_guarded, targets
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Expr, binary, cast, const, integer
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def _looked_up(data: DType, extent: int, computed: bool) -> FusedKernel:
    builder = KernelBuilder()
    x = builder.input(TensorType(data, (extent,)))
    table = builder.input(TensorType(DType.I8, (256,)))

    def body(i: Expr) -> Expr:
        value = binary("add", x[i], x[i]) if computed else x[i]
        return table[cast(DType.I64, cast(DType.U8, value))]

    builder.stage("y", [("i", extent)], body)
    return builder.kernel("looked_up", "y")


@pytest.mark.parametrize("name", [*targets(), "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("data", [DType.U8, DType.I8])
@pytest.mark.parametrize("computed", [False, True])
def test_every_byte_finds_its_entry(name: str, data: DType, computed: bool) -> None:
    target = targets().get(name) or target_named(name)
    if not set(target.features) <= set(host_target().features):
        pytest.skip(f"this CPU does not run code for {name}")
    table = np.random.default_rng(0).integers(-128, 128, 256).astype(np.int8)
    for extent in (256, 293, 7):
        kernel = _looked_up(data, extent, computed)
        x = (np.arange(extent) * 37).astype(np.uint8).view(data.numpy)
        inputs = {"in0": x, "in1": table}
        outcome = run_guarded(kernel, default_schedule(kernel, target), inputs, target)
        assert not outcome.problem
        np.testing.assert_array_equal(outcome.output, evaluate_kernel(kernel, inputs), strict=True)


def _picked(dtype: DType, rows: int, words: int, extent: int) -> FusedKernel:
    """Elements of the last of so many rows, at positions of any value."""
    builder = KernelBuilder()
    table = builder.input(TensorType(dtype, (rows, words)))
    x = builder.input(TensorType(DType.I32, (extent,)))

    def body(i: Expr) -> Expr:
        clamped = binary("min", x[i], const(words - 1, DType.I32))
        place = cast(DType.I64, binary("max", clamped, const(0, DType.I32)))
        return table[integer(rows - 1), place]

    builder.stage("y", [("i", extent)], body)
    return builder.kernel("picked", "y")


@pytest.mark.parametrize("name", [*targets(), "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.F64])
@pytest.mark.parametrize("words", [1, 15, 16, 17, 30, 48, 63, 64, 65])
def test_words_are_picked_from_the_end_of_memory(name: str, dtype: DType, words: int) -> None:
    target = targets().get(name) or target_named(name)
    if not set(target.features) <= set(host_target().features):
        pytest.skip(f"this CPU does not run code for {name}")
    for extent in (200, 7):
        kernel = _picked(dtype, 2, words, extent)
        table = np.arange(2 * words).reshape(2, words).astype(dtype.numpy)
        inputs = {"in0": table, "in1": (np.arange(extent) * 37 % 90 - 9).astype(np.int32)}
        outcome = run_guarded(kernel, default_schedule(kernel, target), inputs, target)
        assert not outcome.problem
        np.testing.assert_array_equal(outcome.output, evaluate_kernel(kernel, inputs), strict=True)
