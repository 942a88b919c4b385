"""Conversions of narrow floats in generated code: every bit pattern, as NumPy converts it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.emitted_code import TARGETS
from tests.compiler.llvm.pointwise import Values, machines, run_pointwise
from tests.compiler.schedule.guarded_run import run_guarded
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import cast
from tunefarm.compiler.kernels.kernel import KernelBuilder
from tunefarm.compiler.llvm.compile_kernel import emit_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Vectorize
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

NARROW = tuple(dtype for dtype in DType if dtype.is_float and dtype.bits <= 16)
SMALL_INTEGERS = tuple(dtype for dtype in DType if dtype.is_integer and dtype.bits < 8)
MACHINES = tuple(machines())
LIBRARY = (b"sfbf2", b"dfbf2", b"hfsf2", b"sfhf2", b"dfhf2", b"__gnu_")  # __truncsfbf2, ...


def every_pattern(dtype: DType) -> Values:
    """All numbers of a type, in the order of their bits."""
    unsigned = np.dtype(f"u{dtype.bytes}")
    return np.arange(1 << dtype.bits, dtype=unsigned).view(dtype.numpy)


def hard_to_round(dtype: DType) -> Values:
    """Every number that f32 and the type have, what lies half way to the next, and beside both."""
    exact = np.unique(every_pattern(dtype).astype(np.float32))
    exact = exact[np.isfinite(exact)]
    middle = exact[:-1] + (exact[1:] - exact[:-1]) / 2
    around = np.concatenate([exact, middle])
    up, down = (np.nextafter(around, np.float32(end)) for end in (np.inf, -np.inf))
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 3.4e38, -3.4e38, 1e-45, -1e-45], np.float32)
    patterns = np.arange(0, 1 << 32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([around, up, down, special, patterns]).astype(np.float32)


def run_cast(values: Values, dtype: DType, machine: str) -> Values:
    return run_pointwise([values], lambda x: cast(dtype, x), machine)


def assert_same_numbers(got: Values, expected: Values) -> None:
    """The same bits, but that one NaN is as good as another."""
    assert got.dtype == expected.dtype
    bits = f"u{got.itemsize}"
    both_nan = (got != got) & (expected != expected)
    np.testing.assert_array_equal(got.view(bits)[~both_nan], expected.view(bits)[~both_nan])


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", NARROW)
def test_every_pattern_becomes_its_number_in_f32(dtype: DType, machine: str) -> None:
    values = every_pattern(dtype)
    assert_same_numbers(run_cast(values, DType.F32, machine), converted(values, DType.F32))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", NARROW)
def test_f32_is_rounded_to_the_nearest_number(dtype: DType, machine: str) -> None:
    values = hard_to_round(dtype)
    if dtype is DType.BF16 and DType.BF16 in machines()[machine].converted:
        values = values[~(np.abs(values) < 2.0**-126)]  # 0 to the instruction
    if dtype is DType.F8E8M0:  # the package ml_dtypes rounds subnormal numbers up
        values = values[~(np.abs(values) < 2.0**-126) | (values == 2.0**-127)]
    if dtype is DType.F4E2M1:  # NaN is a 0 of one sign or the other
        values = values[~np.isnan(values)]
    assert_same_numbers(run_cast(values, dtype, machine), converted(values, dtype))


@pytest.mark.parametrize("machine", MACHINES)
def test_two_vectors_of_f32_become_one_of_bf16(machine: str) -> None:
    target, values = machines()[machine], hard_to_round(DType.BF16)
    values = values[~(np.abs(values) < 2.0**-126)]
    rows = values[: values.size // 32 * 32].reshape(-1, 32)
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, rows.shape))
    axes = [("i", len(rows)), ("j", 32)]
    builder.stage("out", axes, lambda i, j: cast(DType.BF16, x[i, j]))
    kernel = builder.kernel("out", "out")
    schedule = Schedule((Vectorize("out", "j"),))
    got = run_guarded(kernel, schedule, {"in0": rows}, target).output
    assert_same_numbers(got, converted(rows, DType.BF16))
    text = emit_loops(lower(kernel, schedule), schedule, target, "kernel").text
    joins = "avx512bf16" in target.features
    assert ("cvtne2ps2bf16" in text) == joins


@pytest.mark.parametrize("dtype", (DType.F16, DType.BF16))
def test_f64_is_rounded_once(dtype: DType) -> None:
    near = hard_to_round(dtype)
    inside = near[np.abs(near) > 2.0**-120].astype(np.float64)
    values = np.concatenate([inside * (1 + sign * 2.0**-45) for sign in (-1, 0, 1)])
    assert_same_numbers(run_cast(values, dtype, "host"), converted(values, dtype))


def test_f64_beside_a_tie_is_not_rounded_to_even() -> None:
    beside = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8 - 2.0**-40])
    np.testing.assert_array_equal(
        converted(beside, DType.BF16).astype(np.float64), [1 + 2.0**-7, 1, 1 + 2.0**-7]
    )


@pytest.mark.parametrize("other", [DType.I8, DType.U8, DType.I32, DType.I64, DType.U64, DType.BOOL])
@pytest.mark.parametrize("dtype", (DType.F16, DType.BF16, DType.F8E5M2))
def test_integers_and_bools_are_converted_by_way_of_f32(dtype: DType, other: DType) -> None:
    numbers = np.arange(0, 100).astype(other.numpy)
    narrow = converted(numbers.astype(np.float32), dtype)
    assert_same_numbers(run_cast(numbers, dtype, "host"), narrow)
    np.testing.assert_array_equal(
        run_cast(narrow, other, "host"), converted(narrow.astype(np.float32), other)
    )


@pytest.mark.parametrize("dtype", SMALL_INTEGERS)
def test_small_integers_are_the_lowest_bits_of_a_byte(dtype: DType) -> None:
    numbers = np.arange(-128, 128, dtype=np.int8)
    narrow = run_cast(numbers, dtype, "host")
    np.testing.assert_array_equal(narrow.view(np.uint8), converted(numbers, dtype).view(np.uint8))
    least, most = dtype.limits
    wide = run_cast(narrow, DType.I32, "host")
    assert (wide.min(), wide.max()) == (least, most)
    np.testing.assert_array_equal((wide - numbers) % (1 << dtype.bits), 0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F8E4M3FN])
def test_no_target_converts_by_calls_of_a_library(dtype: DType, target: str) -> None:
    machine = target_named(target)
    for source, to in ((dtype, DType.F32), (DType.F32, dtype), (DType.F64, dtype)):
        builder = KernelBuilder()
        x = builder.input(TensorType(source, (37,)))
        builder.stage("out", [("i0", 37)], lambda i, x=x, to=to: cast(to, x[i]))
        kernel = builder.kernel("out", "out")
        schedule = default_schedule(kernel, machine)
        emitted = emit_loops(lower(kernel, schedule), schedule, machine, "kernel")
        code = emitted.compile(machine).object_code
        assert not [name for name in LIBRARY if name in code]
