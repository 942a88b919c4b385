"""How often a kernel's result is rounded, and to what."""

from __future__ import annotations

from tests.compiler.kernels.recurrent import STEPS, UNITS, recurrent
from tunefarm.compiler.expr.nodes import Expr, add, cast, mul
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, Tensor
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.measure.worker.reference import Rounding, rounding_of

BF16, F32 = DType.BF16, DType.F32


def finish(builder: KernelBuilder) -> FusedKernel:
    return builder.kernel("test", builder.stages[-1].name)


def product(builder: KernelBuilder, storage: DType) -> Tensor:
    """A product with sums of 48 terms in f32."""
    a = builder.input(TensorType(storage, (64, 48)))
    b = builder.input(TensorType(storage, (48, 32)))
    return builder.stage(
        "matmul",
        [("m", 64), ("n", 32)],
        lambda m, n, k: mul(cast(F32, a[m, k]), cast(F32, b[k, n])),
        reduce=[("k", 48)],
        combiner="sum",
    )


def test_length_counts_sums_but_not_maxima() -> None:
    builder = KernelBuilder()
    product(builder, F32)
    assert rounding_of(finish(builder)) == Rounding(48)
    builder = KernelBuilder()
    x = builder.input(TensorType(F32, (9,)))
    builder.stage("max", [], lambda k: x[k], reduce=[("k", 9)], combiner="max")
    assert rounding_of(finish(builder)) == Rounding(1)


def test_each_step_of_a_recurrence_rounds_what_the_one_before_gave() -> None:
    assert rounding_of(recurrent()) == Rounding(STEPS * UNITS)


def test_roundings_of_a_finer_accumulator_are_parts_of_one() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(F32, (900,)))
    builder.stage(
        "sum",
        [],
        lambda k: x[k],
        reduce=[("k", 900)],
        combiner="sum",
        accumulator=DType.F64,
    )
    assert rounding_of(finish(builder)) == Rounding(1)


def test_narrow_factors_and_a_narrow_result_leave_a_sum_its_roundings_in_f32() -> None:
    builder = KernelBuilder()
    total = product(builder, BF16)
    assert rounding_of(finish(builder)) == Rounding(48)
    builder.stage("stored", [("m", 64), ("n", 32)], lambda m, n: cast(BF16, total[m, n]))
    assert rounding_of(finish(builder)) == Rounding(48)


def test_what_is_rounded_on_the_way_to_the_result_counts_but_the_result_does_not() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(F32, (8,)))

    def body(i: Expr) -> Expr:
        rounded = cast(F32, cast(BF16, x[i]))
        return cast(BF16, add(rounded, rounded))

    builder.stage("twice", [("i0", 8)], body)
    assert rounding_of(finish(builder)) == Rounding(1, BF16.epsilon)
