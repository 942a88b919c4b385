from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import assert_close
from tests.compiler.schedule.small_kernels import f32, inputs_for, kernel_of
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.printer import format_kernel
from tunefarm.compiler.kernels.split_axis import split_axis
from tunefarm.compiler.schedule.sketches.phases import split_phases


def upsampling(width: int) -> FusedKernel:
    """A transposed convolution of stride 2 with padding, and what follows it."""
    attributes = {"strides": (1, 2), "pads": (0, 1, 0, 1), "shape": (1, width)}
    return kernel_of(
        [f32(1, 2, 1, width // 2), f32(2, 3, 1, 4), f32(1, 3, 1, width)],
        [("conv_transpose", ["x0", "x1"], attributes), ("add", ["v0", "x2"], {})],
        ["x1"],
    )


def test_a_split_kernel_computes_the_same_elements() -> None:
    kernel = upsampling(14)
    split = split_axis(kernel, "ow", 2)
    inputs = inputs_for(kernel)
    result = evaluate_kernel(split, inputs)
    assert result.shape == (1, 3, 1, 7, 2)
    expected = evaluate_kernel(kernel, inputs)
    assert_close([result.reshape(expected.shape)], [expected])


def test_the_data_of_a_split_kernel_moves_with_the_quotient_and_weights_with_the_phase() -> None:
    text = format_kernel(split_axis(upsampling(14), "ow", 2))
    assert "ow_q + (ow_r + 1) // 2" in text
    assert "(ow_r + 1) % 2 + kw * 2" in text


def test_only_a_factor_of_the_extent_splits_an_axis() -> None:
    with pytest.raises(ScheduleError, match="4 does not divide ow of extent 14"):
        split_axis(upsampling(14), "ow", 4)


def test_phases_are_split_where_they_are_whole() -> None:
    _, steps = split_phases(upsampling(14), 16)
    assert [(step.axis, step.factor) for step in steps] == [("ow", 2)]
    odd = upsampling(15)
    assert split_phases(odd, 16) == (odd, ())
