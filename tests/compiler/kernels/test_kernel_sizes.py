"""What kernels are told of run-time sizes: how large they may be, and what they limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.expr.nodes import binary, const, integer, select
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, ValidExtent
from tunefarm.compiler.kernels.kernel_sizes import (
    greatest_sizes,
    kernel_at,
    live_extents,
    needed_elements,
    size_vectors,
)
from tunefarm.compiler.kernels.serialize import kernel_from_json, kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.measure.worker.reference import make_inputs, rounding_of
from tunefarm.measure.worker.workload import OutputCheck

ROWS, LENGTH = 3, 20


def filled_sums(rows: int = ROWS, length: int = LENGTH) -> FusedKernel:
    """Rows' sums of as many elements as sizes[2] says; only sizes[0] rows matter."""
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (rows, length)))
    sizes = builder.input(TensorType(DType.I64, (4,)))
    builder.stage(
        "sum",
        [("i", rows)],
        lambda i, r: select(binary("lt", r, sizes[(integer(2),)]), x[i, r], const(0.0, DType.F32)),
        reduce=[("r", length)],
        combiner="sum",
    )
    limits = (ValidExtent(1, rows, sizes.name, 0),)
    return builder.kernel("sums", "sum", limits)


def test_a_limit_ends_the_one_axis_that_it_counts() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (3, 4, 5)))
    sizes = builder.input(TensorType(DType.I64, (1,)))
    builder.stage("y", [("i", 3), ("j", 4), ("k", 5)], lambda *at: x[at])
    limits = (ValidExtent(5, 4, sizes.name, 0),)
    kernel = builder.kernel("y", "y", limits)
    assert [kernel.limited_at(position) for position in range(3)] == [False, True, False]


def test_sizes_are_at_most_what_tensors_are_padded_to() -> None:
    kernel = filled_sums()
    name = kernel.inputs[1].name
    assert greatest_sizes(kernel) == {name: {0: ROWS, 2: LENGTH}}
    np.testing.assert_array_equal(size_vectors(kernel)[name], [ROWS, LENGTH, LENGTH, LENGTH])
    np.testing.assert_array_equal(size_vectors(kernel, (2, 9, 7, 9))[name], [2, 9, 7, 9])
    np.testing.assert_array_equal(size_vectors(kernel, (2, 9))[name], [3, 20, 20, 20])
    np.testing.assert_array_equal(size_vectors(filled_sums(1, 1))[name], [1, 1, 1, 1])


@pytest.mark.parametrize("sizes", [(), (2, 1, 5, 1)])
def test_a_kernel_is_measured_at_these_sizes(sizes: tuple[int, ...]) -> None:
    kernel = filled_sums()
    inputs = make_inputs(kernel, 0, "key", sizes)
    x = inputs[kernel.inputs[0].name]
    found: Any = evaluate_kernel(kernel, inputs)
    np.testing.assert_allclose(found, x[:, : sizes[2] if sizes else LENGTH].sum(1), rtol=1e-5)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 5))
def test_elements_matter_that_keep_within_the_limits(
    outer: int, extent: int, inner: int, size: int
) -> None:
    builder = KernelBuilder()
    sizes = builder.input(TensorType(DType.I64, (1,)))
    shape = (outer * extent, inner)
    builder.stage("place", [("i", shape[0]), ("j", inner)], lambda i, j: sizes[(integer(0),)])
    limits = (ValidExtent(inner, extent, sizes.name, 0),)
    kernel = builder.kernel("k", "place", limits)
    needed = needed_elements(kernel, {sizes.name: np.array([size])})
    assert needed is not None and needed.shape == shape
    expected = np.arange(outer * extent) % extent < size
    np.testing.assert_array_equal(needed, np.repeat(expected[:, None], inner, 1))


def test_what_lies_behind_the_limits_may_be_anything() -> None:
    kernel = filled_sums()
    inputs = make_inputs(kernel, 0, "key", (2, 1, 5, 1))
    expected = evaluate_kernel(kernel, inputs)
    check = OutputCheck(expected, rounding_of(kernel), needed_elements(kernel, inputs))
    found = expected.copy()
    found[2] = np.nan
    assert check.mismatch(found) is None
    found[1] = np.nan
    assert check.mismatch(found) is not None


def test_a_kernel_that_is_tuned_for_other_sizes_is_another_workload() -> None:
    kernel = filled_sums()
    (at,) = {kernel_at(kernel, (2, 9, 7, 9)), kernel_at(kernel, (2, 1, 7, 30))}  # it reads 0 and 2
    assert at.sizes == (2, LENGTH, 7, LENGTH)
    assert workload_key(at) != workload_key(kernel)
    assert kernel_from_json(kernel_to_json(at)) == at
    assert kernel_at(at, (ROWS, 1, LENGTH, 1)) == kernel
    inputs = make_inputs(at, 0, "key")
    np.testing.assert_array_equal(inputs[kernel.inputs[1].name], at.sizes)


def test_loops_run_as_far_as_the_sizes_that_a_kernel_is_tuned_for() -> None:
    kernel = filled_sums()
    whole, part = live_extents(kernel), live_extents(kernel_at(kernel, (2, 9, 7, 9)))
    assert (whole.output, dict(whole.reduce)) == ((ROWS,), {"r": LENGTH})
    assert (part.output, dict(part.reduce)) == ((2,), {"r": 7})
