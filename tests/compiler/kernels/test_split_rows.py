"""What is folded is folded along axes of its own where sizes are about rows within it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.schedule.small_kernels import kernel_of
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.split_rows import split_folds
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute, TensorType


def grouped_sum(channels: int, rows: int, columns: int) -> FusedKernel:
    """Sums of groups of channels whose rows and columns end at sizes."""
    extent = channels * rows * columns
    fill: dict[str, Attribute] = {"axis": 1, "value": "zero"}
    types = [TensorType(DType.F32, (2, extent)), TensorType(DType.I64, (2,))]
    by_rows: dict[str, Attribute] = {**fill, "number": 0, "extent": rows, "inner": columns}
    by_columns: dict[str, Attribute] = {**fill, "number": 1, "extent": columns}
    return kernel_of(
        types,
        [
            ("fill", ["x0", "x1"], by_rows),
            ("fill", ["v0", "x1"], by_columns),
            ("reduce_sum", ["v1"], {"axes": (1,), "keepdims": False}),
        ],
    )


@settings(max_examples=30, deadline=None)
@given(
    extents=st.tuples(st.integers(2, 4), st.integers(2, 7), st.integers(2, 7)),
    sizes=st.tuples(st.integers(0, 7), st.integers(0, 7)),
)
def test_a_fold_over_planes_is_one_over_channels_rows_and_columns(
    extents: tuple[int, int, int], sizes: tuple[int, int]
) -> None:
    kernel = grouped_sum(*extents)
    split = split_folds(kernel)
    verify_kernel(split)
    (stage,) = (stage for stage in split.stages if stage.reduce_axes)
    assert tuple(axis.extent for axis in stage.reduce_axes) == extents
    data = np.random.default_rng(0).standard_normal((2, *extents)).astype(np.float32)
    data[:, :, sizes[0] :], data[:, :, :, sizes[1] :] = np.nan, np.nan
    inputs = {
        buffer.name: np.array(sizes, np.int64)
        if buffer.dtype is DType.I64
        else data.reshape(buffer.shape)
        for buffer in split.inputs
    }
    whole = {b.name: inputs[b.name].reshape(b.shape) for b in kernel.inputs}
    found = evaluate_kernel(split, inputs).astype(np.float64)
    expected = evaluate_kernel(kernel, whole).astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.isfinite(expected).all()


def test_a_fold_over_whole_rows_stays_one() -> None:
    kernel = grouped_sum(2, 3, 5)
    stages = tuple(
        replace(stage, body=stage.body.then.then) if stage.reduce_axes else stage  # type: ignore[attr-defined]
        for stage in kernel.stages
    )
    plain = replace(kernel, stages=stages)
    assert split_folds(plain) is plain
