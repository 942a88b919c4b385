"""Accumulators: where a stage may have one, how it is written, and what terms meet in."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.schedule.small_kernels import kernel_from
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.expr.nodes import add, mul
from tunefarm.compiler.kernels.canonicalise import canonicalise
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.printer import format_kernel
from tunefarm.compiler.kernels.serialize import kernel_from_json, kernel_to_json
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.kernels.winograd import blocked_conv
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

F32, F64, I8, I32, U8 = DType.F32, DType.F64, DType.I8, DType.I32, DType.U8


def dot(dtype: DType = F32, accumulator: DType | None = F64, combiner: str = "sum") -> FusedKernel:
    """y = z + the combined x[k] * w[k]."""
    builder = KernelBuilder()
    x, w = (builder.input(TensorType(dtype, (3,))) for _ in range(2))
    z = builder.input(TensorType(dtype, ()))
    total = builder.stage(
        "dot",
        [],
        lambda k: mul(x[k], w[k]),
        reduce=[("k", 3)],
        combiner=combiner,
        accumulator=accumulator,
    )
    builder.stage("y", [], lambda: add(total[()], z[()]))
    return builder.kernel("dot", "dot")


@pytest.mark.parametrize(("dtype", "accumulator"), [(F32, F64), (I8, I32), (U8, I32)])
def test_wider_type_of_the_same_kind_is_accepted(dtype: DType, accumulator: DType) -> None:
    verify_kernel(dot(dtype, accumulator))


@pytest.mark.parametrize(
    ("dtype", "accumulator"),
    [(F64, F32), (I8, F32), (F32, I32), (I32, DType.U64), (I32, DType.U32), (U8, I8)],
)
def test_type_that_cannot_hold_the_terms_is_refused(dtype: DType, accumulator: DType) -> None:
    with pytest.raises(VerifyError, match=f"stage dot: {accumulator} cannot accumulate {dtype}: "):
        verify_kernel(dot(dtype, accumulator))


def test_only_sums_and_products_have_use_for_one() -> None:
    with pytest.raises(VerifyError, match="a max has no use for an accumulator of type f64"):
        verify_kernel(dot(combiner="max"))
    kernel = dot()
    output = replace(kernel.output, accumulator=F64)
    with pytest.raises(VerifyError, match="stage y: a stage without reduce axes has no use"):
        verify_kernel(replace(kernel, stages=(*kernel.stages[:-1], output)))


def test_type_of_the_body_is_no_accumulator_of_its_own() -> None:
    assert dot(accumulator=F32) == dot(accumulator=None)


def test_json_and_key_name_it_where_there_is_one() -> None:
    wide, plain = dot(), dot(accumulator=None)
    assert kernel_to_json(wide)["stages"][0] == [*kernel_to_json(plain)["stages"][0], "f64"]
    assert kernel_from_json(json.loads(json.dumps(kernel_to_json(wide)))) == wide
    assert workload_key(wide) != workload_key(plain)


def test_it_is_printed() -> None:
    assert "dot[]: f32 = sum in f64 over k=3 of\n" in format_kernel(dot())


@pytest.mark.parametrize("canonical", [False, True])
def test_terms_meet_in_the_accumulator(canonical: bool) -> None:
    inputs = {
        "in0": np.array([1e30, 1e30, 1], np.float32),
        "in1": np.array([1e30, -1e30, 0], np.float32),  # products that f32 does not hold
        "in2": np.array(7, np.float32),
    }
    results = []
    for kernel in (dot(), dot(accumulator=None)):
        kernel = canonicalise(kernel)[0] if canonical else kernel
        results.append(float(evaluate_kernel(kernel, inputs, accumulate_double=False)))
    assert results[0] == 7.0
    assert np.isnan(results[1])


def test_schedules_meet_a_reduction_of_the_accumulators_type() -> None:
    kernel, _ = canonicalise(dot())
    verify_kernel(kernel)
    assert format_kernel(kernel) == (
        "kernel dot (anchor dot.accumulated)\n"
        "  input in0: f32[3]\n"
        "  input in1: f32[3]\n"
        "  input in2: f32[]\n"
        "  dot.accumulated[]: f64 = sum over k=3 of\n"
        "    f64(in0[k]) * f64(in1[k])\n"
        "  y[]: f32 =\n"
        "    f32(dot.accumulated[]) + in2[]\n"
    )


def test_winograd_has_no_form_with_an_accumulator() -> None:
    kernel = kernel_from(
        "f32[1,2,7,7,8] const f32[16,16,3,3]; conv x0 x1 layout=NCHWc pads=(1,1,1,1)"
    )
    assert blocked_conv(kernel)
    stages = tuple(
        replace(stage, accumulator=F64) if stage.name == kernel.anchor else stage
        for stage in kernel.stages
    )
    assert not blocked_conv(replace(kernel, stages=stages))
