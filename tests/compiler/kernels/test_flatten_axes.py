"""Two axes of a result as one: the same elements, and vectors of what is read one by one."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Expr, binary, const, integer, mul, select, sub
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.flatten_axes import divisions, flatten_axes
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def joined(axis: int) -> FusedKernel:
    """x and then z, three and two along the axis."""
    builder = KernelBuilder()
    shapes = [[4, 5, 6] for _ in range(3)]
    shapes[0][axis], shapes[1][axis], shapes[2][axis] = 3, 2, 5
    x, z, _ = (builder.input(TensorType(DType.F32, tuple(shape))) for shape in shapes)

    def value(*indices: Expr) -> Expr:
        beyond = list(indices)
        beyond[axis] = sub(indices[axis], integer(3))
        return select(binary("lt", indices[axis], integer(3)), x[indices], z[tuple(beyond)])

    builder.stage("y", list(zip("ijk", shapes[2], strict=True)), value)
    return FusedKernel("joined", tuple(builder.inputs[:2]), tuple(builder.stages), "y")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("pair", [("i", "j"), ("j", "k")])
def test_a_flat_kernel_computes_the_same(axis: int, pair: tuple[str, str]) -> None:
    kernel = joined(axis)
    flat = flatten_axes(kernel, *pair)
    verify_kernel(flat)
    rng = np.random.default_rng(axis)
    arrays = {b.name: rng.random(b.shape, np.float32) for b in kernel.inputs}
    shaped = {b.name: arrays[b.name].reshape(b.shape) for b in flat.inputs}
    expected = evaluate_kernel(kernel, arrays)
    actual = evaluate_kernel(flat, shaped)
    np.testing.assert_array_equal(actual.reshape(expected.shape), expected)


def test_pieces_along_the_outer_axis_need_no_division() -> None:
    flat = flatten_axes(flatten_axes(joined(0), "j", "k"), "i", "j_k")
    assert divisions(flat) == 0
    assert [buffer.shape for buffer in flat.inputs] == [(90,), (60,)]
    assert divisions(flatten_axes(joined(2), "j", "k")) == 2  # which row it is, and where in it


def test_repeated_divisions_are_one() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (2, 3)))
    axes = [("i", 2), ("j", 3), ("k", 5)]
    builder.stage("y", axes, lambda i, j, k: mul(x[i, j], const(2.0, DType.F32)))
    kernel = builder.kernel("spread", "y")
    flat = flatten_axes(flatten_axes(kernel, "j", "k"), "i", "j_k")
    assert divisions(flat) == 1
    assert flat.inputs[0].shape == (6,)


def test_sums_are_not_flattened() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (2, 3, 4)))
    reduce = [("k", 4)]
    builder.stage(
        "y", [("i", 2), ("j", 3)], lambda i, j, k: x[i, j, k], reduce=reduce, combiner="sum"
    )
    kernel = builder.kernel("sum", "y")
    with pytest.raises(ScheduleError, match="computes more than one thing, or sums"):
        flatten_axes(kernel, "i", "j")
