"""Matrix tiles that are vectors of 64-bit Arm: exact for all shapes, by I8MM and BF16."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiler.loops.tiny_kernels import run_nest
from tests.compiler.runtime.emulated import Case, emulated, kernel_outputs
from tests.compiler.schedule.narrow_kernels import narrowed, values_for
from tests.compiler.schedule.small_kernels import kernel_of
from tests.targets import target_named
from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm.compile_kernel import constant_layouts, emit_loops
from tunefarm.compiler.llvm.machine import assembly
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

ARM = target_named("neoverse-v1")
PAIRS = [
    (DType.I8, DType.I8),
    (DType.U8, DType.I8),
    (DType.U8, DType.U8),
    (DType.BF16, DType.BF16),
]
INSTRUCTIONS = dict(zip(PAIRS, ("smmla", "usmmla", "ummla", "bfmmla"), strict=True))
DRAWN = settings(
    max_examples=14, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def product(m: int, k: int, n: int, turned: bool, total: DType) -> FusedKernel:
    operands = [TensorType(total, (m, k)), TensorType(total, (n, k) if turned else (k, n))]
    return kernel_of(operands, [("matmul", ["x0", "x1"], {"transpose_b": turned})], ["x1"])


def convolution(
    blocks: tuple[int, int], window: int, size: tuple[int, int], stride: int, total: DType
) -> FusedKernel:
    inputs, outputs = blocks
    data = TensorType(total, (1, inputs, *size, 4))
    weight = TensorType(total, (4 * outputs, 4 * inputs, window, window))
    pads = (window // 2,) * 4
    attributes: dict[str, str | tuple[int, ...]] = {
        "pads": pads,
        "strides": (stride, stride),
        "layout": "NCHWc",
    }
    return kernel_of([data, weight], [("conv", ["x0", "x1"], attributes)], ["x1"])


def kernels(rng: random.Random, total: DType) -> FusedKernel:
    """Products and convolutions, most of which tiles can hold."""
    if rng.random() < 0.5:
        m, n = rng.choice([2, 3, 5, 8, 13, 17]), rng.choice([3, 4, 5, 16, 21])
        return product(m, rng.choice([8, 16, 24, 20, 7]), n, rng.random() < 0.5, total)
    size = rng.choice([3, 5]), rng.choice([4, 7, 10])
    blocks = rng.choice([(1, 1), (2, 1), (1, 3), (2, 2), (4, 3)])
    return convolution(blocks, rng.choice([1, 1, 3]), size, rng.choice([1, 1, 2]), total)


def drawn(seed: int) -> tuple[FusedKernel, Schedule, bool]:
    """A kernel with a schedule, and whether that has tiles."""
    rng = random.Random(seed)
    left, right = rng.choice(PAIRS)
    total = DType.F32 if left.is_float else DType.I32
    requantised = total is DType.I32 and rng.random() < 0.5
    kernel = narrowed(kernels(rng, total), left, right, 0, requantised)
    space = schedule_space(kernel, ARM, rng.choice([1, 2]))
    candidate = space.default() if rng.random() < 0.3 else space.sample(rng)
    schedule = space.schedule(candidate)
    return kernel, schedule, schedule.uses_tiles


def test_drawn_kernels_are_exact_in_tiles() -> None:
    found = []

    @DRAWN
    @given(st.integers(0, 1 << 20))
    def check(seed: int) -> None:
        kernel, schedule, tiled = drawn(seed)
        found.append(tiled)
        nest = lower(kernel, schedule)
        verify_loops(nest)
        inputs = values_for(kernel, seed)
        found_values = run_nest(nest, dict(constant_layouts(schedule)), inputs)
        output: Any = found_values.reshape(kernel.output.shape)
        expected: Any = evaluate_kernel(kernel, inputs)
        if kernel.output.dtype.is_float:
            np.testing.assert_allclose(output, expected, rtol=1e-5)
        else:
            np.testing.assert_array_equal(output, expected, strict=True)
        if tiled:
            text = emit_loops(nest, schedule, ARM, "kernel").text
            assert re.search(r"\t(?:[us]{1,2}|bf)mmla\t", assembly(text, ARM))

    check()
    assert sum(found) >= 4


@emulated
def test_code_of_drawn_kernels_computes_what_they_mean(tmp_path: Path) -> None:
    cases, tiled = [], 0
    for seed in range(36):
        kernel, schedule, has_tiles = drawn(seed)
        cases.append(Case(kernel, schedule, values_for(kernel, seed)))
        tiled += has_tiles
    for case, found in zip(cases, kernel_outputs(cases, ARM, tmp_path), strict=True):
        case.check(found)
    assert tiled >= 9


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_products_of_matrices_take_their_instruction(left: DType, right: DType) -> None:
    kernel = product(32, 128, 64, False, DType.F32 if left.is_float else DType.I32)
    kernel = narrowed(kernel, left, right)
    schedule = default_schedule(kernel, ARM)
    text = emit_loops(lower(kernel, schedule), schedule, ARM, "kernel").text
    found = re.findall(rf"\t{INSTRUCTIONS[left, right]}\t", assembly(text, ARM))
    assert len(found) == 16  # of 8 rows and 8 columns


def test_tiles_that_vectors_do_not_hold_are_refused() -> None:
    """As those of another target's schedule."""
    amx = target_named("sapphirerapids")
    kernel = narrowed(product(32, 128, 64, False, DType.I32), DType.I8, DType.I8)
    schedule = default_schedule(kernel, amx)
    with pytest.raises(LoweringError, match="vectors hold no tile of matmul"):
        emit_loops(lower(kernel, schedule), schedule, ARM, "kernel")


def test_a_cpu_without_products_of_matrices_has_no_tiles() -> None:
    kernel = narrowed(product(32, 128, 64, False, DType.I32), DType.I8, DType.I8)
    plain = target_named("armv8-neon")
    assert not default_schedule(kernel, plain).uses_tiles
