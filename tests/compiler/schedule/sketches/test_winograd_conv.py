"""Winograd's form of convolutions whose operands are narrower than their sums."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiler.schedule.guarded_run import run_guarded, targets
from tests.compiler.schedule.narrow_kernels import narrowed
from tests.compiler.schedule.small_kernels import kernel_of
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.winograd import blocked_conv
from tunefarm.compiler.schedule.sketches.winograd_conv import winograd_sketches
from tunefarm.compiler.schedule.sketches.winograd_cycles import dynamic_block
from tunefarm.compiler.schedule.space import ScheduleSpace
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

TARGETS = targets()
DRAWN = settings(
    max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def convolution(
    channels: tuple[int, int], plane: tuple[int, int], lanes: int, pads: tuple[int, ...]
) -> FusedKernel:
    """3x3, of blocked f32 data; `channels` are blocks of inputs and of outputs."""
    inputs, outputs = channels
    data = TensorType(DType.F32, (1, inputs, *plane, lanes))
    weight = TensorType(DType.F32, (outputs * lanes, inputs * lanes, 3, 3))
    attributes: dict[str, str | tuple[int, ...]] = {"layout": "NCHWc", "pads": pads}
    return kernel_of([data, weight], [("conv", ["x0", "x1"], attributes)], ["x1"])


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_winograd_of_narrow_floats_is_near_the_direct_form(target: Target) -> None:
    @DRAWN
    @given(st.data())
    def check(data: st.DataObject) -> None:
        channels = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))
        plane = data.draw(st.tuples(st.integers(3, 11), st.integers(3, 11)))
        pads = tuple(data.draw(st.integers(0, 2)) for _ in range(4))
        narrow = data.draw(st.sampled_from([DType.BF16, DType.F16]))
        threads = data.draw(st.sampled_from([1, 2]))
        seed = data.draw(st.integers(0, 1 << 16))
        kernel = convolution(channels, plane, target.lanes(DType.F32), pads)
        made = narrowed(kernel, narrow, narrow)
        space = ScheduleSpace(winograd_sketches(made, target, threads))
        schedule = space.schedule(space.sample(random.Random(seed)))
        rng = np.random.default_rng(seed)
        inputs = {
            buffer.name: rng.standard_normal(buffer.shape).astype(buffer.dtype.numpy)
            for buffer in made.inputs
        }
        outcome = run_guarded(made, schedule, inputs, target, threads)
        assert not outcome.problem
        found, expected = outcome.output, evaluate_kernel(made, inputs)
        both = found.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-3)

    check()


@pytest.mark.parametrize(
    ("blocks", "extent", "in_f32", "in_bf16"),
    [
        (4, 56, True, True),
        (4, 64, True, False),  # 4 KiB from a position to the next
        (4, 40, True, True),  # two rows of tiles at a time
        (8, 28, True, False),
        (32, 7, False, False),
    ],
)
def test_winograd_leads_where_it_is_faster_than_dot_products(
    blocks: int, extent: int, in_f32: bool, in_bf16: bool
) -> None:
    features = (*host_target().features, "avx512bf16")
    target = replace(
        host_target(),
        triple="x86_64-unknown-linux-gnu",
        cpu="znver5",
        features=tuple(sorted(set(features))),
        vector_bytes=64,
        vector_registers=32,
        l2_bytes=1 << 20,
        l3_bytes=1 << 25,
    )
    kernel = convolution((blocks, blocks), (extent, extent), 16, (1, 1, 1, 1))
    made = narrowed(kernel, DType.BF16, DType.BF16)
    for each, leads in ((kernel, in_f32), (made, in_bf16)):
        assert [sketch.leads for sketch in winograd_sketches(each, target, 1)] == [leads] * 2


@pytest.mark.parametrize(
    ("blocks", "extent", "block"),
    [(4, 80, (2, 10)), (8, 80, (2, 10)), (32, 80, (1, 10)), (8, 20, (5, 5)), (4, 8, (2, 2))],
)
def test_blocks_of_dynamic_rows_lie_no_page_apart(
    blocks: int, extent: int, block: tuple[int, int]
) -> None:
    conv = blocked_conv(convolution((blocks, 8), (extent, extent), 8, (1, 1, 1, 1)))
    assert conv is not None
    assert dynamic_block(conv, 4, 8) == block


def test_channels_that_pad_the_last_block_are_in_no_product() -> None:
    target = host_target()
    lanes = target.lanes(DType.F32)
    data = TensorType(DType.F32, (1, 2, 9, 9, lanes))
    weight = TensorType(DType.F32, (lanes, lanes + 3, 3, 3))
    attributes: dict[str, str | tuple[int, ...]] = {"layout": "NCHWc", "pads": (1,) * 4}
    kernel = kernel_of([data, weight], [("conv", ["x0", "x1"], attributes)], ["x1"])
    rng = np.random.default_rng(0)
    inputs = {
        buffer.name: rng.standard_normal(buffer.shape).astype(np.float32)
        for buffer in kernel.inputs
    }
    (data_name,) = (buffer.name for buffer in kernel.inputs if not buffer.constant)
    inputs[data_name][:, 1, :, :, 3:] = 1e30
    for sketch in winograd_sketches(kernel, target, 1):
        space = ScheduleSpace([sketch])
        outcome = run_guarded(kernel, space.schedule(space.default()), inputs, target)
        found, expected = outcome.output, evaluate_kernel(kernel, inputs)
        both = found.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-3)


def test_blocks_wider_than_a_vector_have_no_winograd_form() -> None:
    target = host_target()
    block = target.lanes(DType.F32) + 4
    data = TensorType(DType.F32, (1, 1, 9, 9, block))
    weight = TensorType(DType.F32, (block, block, 3, 3))
    attributes: dict[str, str | tuple[int, ...]] = {"layout": "NCHWc", "pads": (1,) * 4}
    kernel = kernel_of([data, weight], [("conv", ["x0", "x1"], attributes)], ["x1"])
    assert winograd_sketches(kernel, target, 1) == []
