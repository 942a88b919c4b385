"""The reference cache on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.measure.fault_kernels import make_kernel
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.expr.nodes import binary, cast, mul, unary
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, TensorType
from tunefarm.measure.worker import reference
from tunefarm.measure.worker.reference import SEEDS, ensure_reference, make_inputs


def test_reference_holds_inputs_and_what_the_kernel_means(tmp_path: Path) -> None:
    result = ensure_reference(make_kernel(), "abc", tmp_path)
    assert len(result.cases) == len(SEEDS)
    for case in result.cases:
        assert np.array_equal(case.expected, 2 * case.inputs["in0"])
        assert isinstance(case.expected, np.memmap)
    assert not np.array_equal(result.cases[0].expected, result.cases[1].expected)


def test_reference_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_reference(make_kernel(), "abc", tmp_path)
    monkeypatch.setattr(reference, "_compute", None)
    again = ensure_reference(make_kernel(), "abc", tmp_path)
    assert np.array_equal(first.cases[0].expected, again.cases[0].expected)


def test_half_written_reference_is_not_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", fail)
        with pytest.raises(OSError, match="disk full"):
            ensure_reference(make_kernel(), "abc", tmp_path)
    assert len(ensure_reference(make_kernel(), "abc", tmp_path).cases) == len(SEEDS)


def test_key_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasureError):
        ensure_reference(make_kernel(), "../escape", tmp_path)


def numbers(array: Array) -> npt.NDArray[np.float64]:
    return array.astype(np.float64)


def finish(builder: KernelBuilder) -> FusedKernel:
    return builder.kernel("test", builder.stages[-1].name)


def gather_kernel() -> FusedKernel:
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (5, 3)))
    rows = builder.input(TensorType(DType.I64, (100,)))
    builder.stage("gather", [("i0", 100), ("i1", 3)], lambda i, j: data[rows[i], j])
    return finish(builder)


def matmul_kernel(
    constant: bool,
    shape: tuple[int, int, int] = (64, 48, 32),
    factors: tuple[DType, DType] = (DType.F32, DType.F32),
    total: DType = DType.F32,
) -> FusedKernel:
    (rows, terms, columns), (left, right) = shape, factors
    builder = KernelBuilder()
    a = builder.input(TensorType(left, (rows, terms)))
    b = builder.input(TensorType(right, (terms, columns)), constant)
    builder.stage(
        "matmul",
        [("m", rows), ("n", columns)],
        lambda m, n, k: mul(cast(total, a[m, k]), cast(total, b[k, n])),
        reduce=[("k", terms)],
        combiner="sum",
    )
    return finish(builder)


def test_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    kernel = matmul_kernel(constant=False)
    first, again, other = (make_inputs(kernel, seed, "key") for seed in (0, 0, 1))
    for name in ("in0", "in1"):
        assert first[name].tobytes() == again[name].tobytes() != other[name].tobytes()


def test_constants_do_not_depend_on_the_seed() -> None:
    kernel = matmul_kernel(constant=True)
    first, other = make_inputs(kernel, 0), make_inputs(kernel, 1)
    assert first["in1"].tobytes() == other["in1"].tobytes()
    assert first["in0"].tobytes() != other["in0"].tobytes()


def test_weights_of_a_long_sum_are_scaled_down() -> None:
    inputs = make_inputs(matmul_kernel(constant=True), 0)
    product = numbers(inputs["in0"]) @ numbers(inputs["in1"])
    assert 0.3 < float(np.std(product)) < 1.0


def test_indices_stay_inside_the_tensor_that_they_address() -> None:
    rows = make_inputs(gather_kernel(), 0)["in1"]
    assert rows.dtype == np.int64
    assert set(rows.tolist()) == {0, 1, 2, 3, 4}


def test_operand_of_a_logarithm_is_positive_and_others_are_not() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (500,)))
    y = builder.input(TensorType(DType.F32, (500,)))
    builder.stage(
        "add", [("i0", 500)], lambda i: binary("add", unary("log", x[i]), unary("exp", y[i]))
    )
    inputs = make_inputs(finish(builder), 0)
    assert np.all(numbers(inputs["in0"]) > 0)
    assert np.any(numbers(inputs["in1"]) < 0)


def test_root_of_a_sum_of_squares_leaves_its_input_signed() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (500,)))
    square = builder.stage("square", [("i0", 500)], lambda i: mul(x[i], x[i]))
    builder.stage("root", [("i0", 500)], lambda i: unary("sqrt", square[i]))
    assert np.any(numbers(make_inputs(finish(builder), 0)["in0"]) < 0)


def test_integer_divisor_is_never_zero() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.I32, (500,)))
    y = builder.input(TensorType(DType.I32, (500,)))
    builder.stage("div", [("i0", 500)], lambda i: binary("div", x[i], y[i]))
    inputs = make_inputs(finish(builder), 0)
    assert np.all(numbers(inputs["in1"]) > 0)
    assert np.any(numbers(inputs["in0"]) < 0)


def test_every_element_type_is_drawn() -> None:
    for dtype in DType:
        builder = KernelBuilder()
        x = builder.input(TensorType(dtype, (3, 4)))
        builder.stage("copy", [("i0", 3), ("i1", 4)], lambda i, j, x=x: x[i, j])
        (array,) = make_inputs(finish(builder), 0).values()
        assert (array.dtype, array.shape) == (dtype.numpy, (3, 4))


def test_narrow_integers_that_are_multiplied_reach_their_ends() -> None:
    kernel = matmul_kernel(True, factors=(DType.U8, DType.I8), total=DType.I32)
    inputs = make_inputs(kernel, 0)
    ends = [(int(array.min()), int(array.max())) for array in map(numbers, inputs.values())]
    assert ends == [(0, 255), (-128, 127)]


def test_constants_of_a_long_narrow_sum_are_scaled_by_its_length() -> None:
    inputs = make_inputs(matmul_kernel(True, (4, 4800, 4), (DType.BF16, DType.BF16)), 0)
    assert inputs["in0"].dtype == inputs["in1"].dtype == DType.BF16.numpy
    assert np.abs(numbers(inputs["in1"])).max() < 0.03
