"""Operators over drawn shapes and geometries, against onnxruntime and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.compiler.operators.cases import Values, array, runtime
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

EXTENTS = st.sampled_from([1, 2, 3, 7, 13])
SMALL = st.integers(1, 3)
FEW = settings(max_examples=60, deadline=None)


def _evaluate(operator: str, *inputs: Values, **attributes: Attribute) -> Values:
    names = tuple(f"x{i}" for i in range(len(inputs)))
    return evaluate_node(Node(operator, names, "y", attributes), inputs)


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, Any]:
    """Strides, pads and dilations of two spatial axes."""
    return {
        "strides": draw(st.tuples(SMALL, SMALL)),
        "dilations": draw(st.tuples(SMALL, SMALL)),
        "pads": draw(st.tuples(*[st.integers(0, 2)] * 4)),
    }


@FEW
@given(
    geometry=geometries(),
    batch=st.integers(1, 2),
    groups=SMALL,
    inputs=SMALL,
    outputs=SMALL,
    extents=st.tuples(EXTENTS, EXTENTS),
    kernel=st.tuples(SMALL, SMALL),
)
def test_convolution_of_any_geometry(
    geometry: dict[str, Any],
    batch: int,
    groups: int,
    inputs: int,
    outputs: int,
    extents: tuple[int, int],
    kernel: tuple[int, int],
) -> None:
    x = array(1, (batch, inputs * groups, *extents))
    w = array(2, (outputs * groups, inputs, *kernel))
    try:
        actual = _evaluate("conv", x, w, groups=groups, **geometry)
    except ShapeError as error:
        assert "does not fit spatial axis" in error.message
        assume(False)
    expected = runtime("Conv", x, w, group=groups, **geometry)()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4, strict=True)


@FEW
@given(
    geometry=geometries(),
    groups=SMALL,
    inputs=SMALL,
    outputs=SMALL,
    extents=st.tuples(EXTENTS, EXTENTS),
    kernel=st.tuples(SMALL, SMALL),
    extra=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_transposed_convolution_of_any_geometry(
    geometry: dict[str, Any],
    groups: int,
    inputs: int,
    outputs: int,
    extents: tuple[int, int],
    kernel: tuple[int, int],
    extra: tuple[int, int],
) -> None:
    strides, dilations, pads = geometry["strides"], geometry["dilations"], geometry["pads"]
    extra = (extra[0] % strides[0], extra[1] % strides[1])
    shape = tuple(
        (extents[i] - 1) * strides[i]
        + (kernel[i] - 1) * dilations[i]
        + 1
        + extra[i]
        - pads[i]
        - pads[i + 2]
        for i in range(2)
    )
    assume(min(shape) >= 1)
    x = array(1, (1, inputs * groups, *extents))
    w = array(2, (inputs * groups, outputs, *kernel))
    actual = _evaluate("conv_transpose", x, w, groups=groups, shape=shape, **geometry)
    expected = runtime("ConvTranspose", x, w, group=groups, output_padding=extra, **geometry)()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4, strict=True)


@FEW
@given(
    geometry=geometries(),
    extents=st.tuples(EXTENTS, EXTENTS),
    kernel=st.tuples(SMALL, SMALL),
    include=st.booleans(),
    ceil=st.booleans(),
)
def test_pools_of_any_geometry(
    geometry: dict[str, Any],
    extents: tuple[int, int],
    kernel: tuple[int, int],
    include: bool,
    ceil: bool,
) -> None:
    pads = geometry["pads"]
    assume(all(pads[i] < kernel[i] and pads[i + 2] < kernel[i] for i in range(2)))
    geometry = {**geometry, "dilations": (1, 1)}
    room = [extents[i] + pads[i] + pads[i + 2] - kernel[i] for i in range(2)]
    assume(min(room) >= 0)
    x = array(1, (1, 2, *extents))
    onnx = {"kernel_shape": kernel, "ceil_mode": int(ceil), **geometry}
    largest = runtime("MaxPool", x, **onnx)()
    window = {"kernel": kernel, "shape": largest.shape[2:]}
    np.testing.assert_array_equal(_evaluate("max_pool", x, **window, **geometry), largest)
    mean = runtime("AveragePool", x, count_include_pad=int(include), **onnx)()
    actual = _evaluate("average_pool", x, count_include_pad=include, **window, **geometry)
    np.testing.assert_allclose(actual, mean, rtol=1e-5, atol=1e-6, strict=True)


@FEW
@given(shape=st.lists(EXTENTS, min_size=1, max_size=3), data=st.data())
def test_slices_equal_numpy(shape: list[int], data: st.DataObject) -> None:
    x = array(1, shape)
    starts, steps, counts, key = [], [], [], []
    for extent in shape:
        start = data.draw(st.integers(0, extent - 1))
        step = data.draw(st.sampled_from([-3, -1, 1, 2]))
        room = start // -step if step < 0 else (extent - 1 - start) // step
        count = data.draw(st.integers(1, room + 1))
        stop = start + count * step
        starts.append(start)
        steps.append(step)
        counts.append(count)
        key.append(slice(start, stop if stop >= 0 else None, step))
    actual = _evaluate("slice", x, starts=tuple(starts), steps=tuple(steps), shape=tuple(counts))
    np.testing.assert_array_equal(actual, x[tuple(key)], strict=True)


@FEW
@given(
    shape=st.lists(EXTENTS, min_size=1, max_size=3),
    mode=st.sampled_from(["constant", "reflect", "edge", "wrap"]),
    data=st.data(),
)
def test_pads_equal_numpy(shape: list[int], mode: Any, data: st.DataObject) -> None:
    x = array(1, shape)
    widths = [data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9))) for _ in shape]
    pads = (*(begin for begin, _ in widths), *(end for _, end in widths))
    actual = _evaluate("pad", x, pads=pads, mode=mode)
    np.testing.assert_array_equal(actual, np.pad(x, widths, mode=mode), strict=True)


@FEW
@given(shape=st.lists(EXTENTS, min_size=1, max_size=4), keep=st.booleans(), data=st.data())
def test_reductions_equal_numpy(shape: list[int], keep: bool, data: st.DataObject) -> None:
    x = array(1, shape, "float64")
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1).map(lambda s: (*s,)))
    for operator, function in (("reduce_sum", np.sum), ("reduce_mean", np.mean)):
        actual = _evaluate(operator, x, axes=axes, keepdims=keep)
        expected = np.asarray(function(x, axis=axes, keepdims=keep))
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12, strict=True)


@FEW
@given(shape=st.lists(EXTENTS, min_size=2, max_size=5), data=st.data())
def test_blocked_layout_round_trips(shape: list[int], data: st.DataObject) -> None:
    x = array(1, shape)
    block = data.draw(st.sampled_from([1, 4, 8, 16]))
    blocked = _evaluate("to_blocked", x, block=block)
    padding = np.moveaxis(blocked, -1, 2).reshape(shape[0], -1, *shape[2:])[:, shape[1] :]
    assert not padding.any()
    back = _evaluate("from_blocked", blocked, channels=shape[1])
    np.testing.assert_array_equal(back, x, strict=True)
