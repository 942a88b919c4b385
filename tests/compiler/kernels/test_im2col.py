"""Windows gathered to rows of a matrix: the same elements, one axis for the plane."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.graph.graph_helpers import assert_close
from tests.compiler.schedule.small_kernels import f32, inputs_for, kernel_of
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.im2col import im2col
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.printer import format_kernel

LANES = 4


def convolution(
    size: tuple[int, int], window: int, stride: int, pad: int, dilation: int, batch: int = 1
) -> FusedKernel:
    """A blocked convolution of 2 to 3 blocks, and what follows it: bias, addition, relu."""
    rows, columns = (
        (extent + 2 * pad - dilation * (window - 1) - 1) // stride + 1 for extent in size
    )
    attributes: dict[str, str | tuple[int, ...]] = {
        "layout": "NCHWc",
        "pads": (pad,) * 4,
        "strides": (stride,) * 2,
        "dilations": (dilation,) * 2,
    }
    return kernel_of(
        [
            f32(batch, 2, *size, LANES),
            f32(3 * LANES, 2 * LANES, window, window),
            f32(3 * LANES),
            f32(batch, 3, rows, columns, LANES),
        ],
        [
            ("conv", ["x0", "x1", "x2"], attributes),
            ("add", ["v0", "x3"], {}),
            ("relu", ["v1"], {}),
        ],
        ["x1", "x2"],
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    size=st.tuples(st.integers(5, 8), st.integers(5, 9)),
    window=st.integers(1, 3),
    stride=st.integers(1, 3),
    pad=st.integers(0, 1),
    dilation=st.integers(1, 2),
    batch=st.integers(1, 2),
)
def test_gathered_windows_give_the_same_elements(
    size: tuple[int, int], window: int, stride: int, pad: int, dilation: int, batch: int
) -> None:
    kernel = convolution(size, window, stride, pad, dilation, batch)
    gathered = im2col(kernel, "oh", "ow")
    inputs = inputs_for(kernel)
    shapes = {buffer.name: buffer.shape for buffer in gathered.inputs}
    result = evaluate_kernel(
        gathered, {name: array.reshape(shapes[name]) for name, array in inputs.items()}
    )
    expected = evaluate_kernel(kernel, inputs)
    assert result.shape == (*expected.shape[:2], expected.shape[2] * expected.shape[3], LANES)
    assert_close([result.reshape(expected.shape)], [expected])


def test_the_gathered_stage_has_terms_outside_and_positions_next_to_the_lanes() -> None:
    gathered = im2col(convolution((5, 7), 3, 2, 1, 1), "oh", "ow")
    stage = gathered.stage("pad.im2col")
    assert [axis.name for axis in stage.axes] == ["n", "kh", "kw", "icb", "oh_ow", "ici"]
    assert stage.shape == (1, 3, 3, 2, 12, LANES)
    text = format_kernel(gathered)
    assert "oh_ow // 4 * 2 + kh" in text and "oh_ow % 4 * 2 + kw" in text


def test_what_has_no_vectors_of_terms_is_refused() -> None:
    depthwise = kernel_of(
        [f32(1, 2, 5, 6, LANES), f32(2 * LANES, 1, 3, 3)],
        [("conv", ["x0", "x1"], {"layout": "NCHWc", "groups": 2 * LANES})],
        ["x1"],
    )
    with pytest.raises(ScheduleError, match="reads no vectors of terms of in0"):
        im2col(depthwise, "oh", "ow")


def test_other_axes_than_those_of_the_plane_are_refused() -> None:
    kernel = convolution((5, 7), 3, 1, 1, 1)
    with pytest.raises(ScheduleError, match="ow and oh are not adjacent axes"):
        im2col(kernel, "ow", "oh")
    with pytest.raises(ScheduleError, match="oh and row are no axes of conv"):
        im2col(kernel, "oh", "row")


def test_a_plane_is_gathered_once() -> None:
    gathered = im2col(convolution((5, 7), 3, 1, 1, 1), "oh", "ow")
    with pytest.raises(ScheduleError, match="no axes of conv"):
        im2col(gathered, "oh", "ow")
