"""What is rounded to f16 is computed in f16, where the CPU can and nothing else comes of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.runtime.emulated import Case, emulated, kernel_outputs
from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.small_kernels import kernel_of
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Expr, Load, binary, cast, const, unary
from tunefarm.compiler.expr.walk import loads, rewrite
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm.compile_kernel import emit_loops
from tunefarm.compiler.llvm.machine import assembly
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

SHAPE = (7, 37)


def wide(name: str) -> Expr:
    return cast(DType.F32, Load(DType.F16, name, ()))


def rounded(value: Expr) -> Expr:
    return cast(DType.F32, cast(DType.F16, value))


X, Y, Z = (wide(f"x{i}") for i in range(3))
ZERO = const(0.0, DType.F32)
IN_F16 = {
    "vadd": binary("add", X, Y),
    "vsub": binary("sub", X, Y),
    "vmul": binary("mul", X, Y),
    "vdiv": binary("div", X, Y),
    "vsqrt": unary("sqrt", unary("abs", X)),
    "vmax": binary("max", rounded(binary("add", rounded(binary("mul", X, Y)), Z)), ZERO),
    "vmin": binary("min", unary("neg", binary("mul", X, Y)), Z),
    "vfmadd": binary("max", binary("add", binary("mul", X, Y), Z), ZERO),
}
"""By an instruction that it takes."""
IN_F32 = (
    binary("mul", binary("add", X, Y), Z),  # rounded once, at the end
    binary("add", X, const(0.1, DType.F32)),  # a number that f16 does not have
    binary("sub", Z, binary("mul", X, Y)),
    unary("exp", X),
)


def kernel(value: Expr) -> FusedKernel:
    """The value, rounded to f16, of elements x0, x1 and x2."""
    operands = [TensorType(DType.F16, SHAPE)] * 3
    made = kernel_of(operands, [("add", ["x0", "x1"], {}), ("add", ["v0", "x2"], {})])
    stage = made.output
    (place,) = {load.indices for load in loads(stage.body)}
    names = {f"x{i}": buffer.name for i, buffer in enumerate(made.inputs)}

    def placed(node: Expr) -> Expr:
        if not isinstance(node, Load):
            return node
        return replace(node, buffer=names[node.buffer], indices=place)

    body = cast(DType.F16, rewrite(value, placed))
    read = {load.buffer for load in loads(body)}
    inputs = tuple(buffer for buffer in made.inputs if buffer.name in read)
    return replace(made, inputs=inputs, stages=(replace(stage, body=body),))


def code(value: Expr, name: str) -> str:
    made, machine = kernel(value), target_named(name)
    schedule = default_schedule(made, machine)
    text = emit_loops(lower(made, schedule), schedule, machine, "kernel").text
    return assembly(text, machine)


@pytest.mark.parametrize("instruction", IN_F16)
def test_what_is_rounded_once_takes_one_instruction(instruction: str) -> None:
    found = code(IN_F16[instruction], "sapphirerapids")
    assert re.search(rf"\t{instruction}\w*ph\t", found)
    assert not re.search(r"\tvcvt", found)
    arm = code(IN_F16[instruction], "neoverse-v1")
    assert re.search(r"\tf\w+\tv\d+\.[48]h", arm) and "fcvt" not in arm
    older = code(IN_F16[instruction], "znver4")
    assert re.search(r"\tvcvtph2ps\t", older) and not re.search(r"\t(?!vcvt)v\w+ph\t", older)


@pytest.mark.parametrize("number", range(len(IN_F32)))
def test_what_is_rounded_later_stays_in_f32(number: int) -> None:
    value = IN_F32[number]
    assert re.search(r"\tvcvtps2phx?\t", code(value, "sapphirerapids"))
    assert re.search(r"\tfcvtn2?\t", code(value, "neoverse-v1"))


def values(made: FusedKernel, seed: int) -> dict[str, Any]:
    """Any bits but those of NaN, and numbers whose products and sums are ordinary or cancel."""
    rng = np.random.default_rng(seed)
    drawn = {}
    for buffer in made.inputs:
        any_bits = rng.integers(0, 1 << 16, SHAPE).astype(np.uint16).view(np.float16)
        usual = rng.normal(size=SHAPE).astype(np.float16)
        chosen = np.where(rng.random(SHAPE) < 0.5, any_bits, usual)
        drawn[buffer.name] = np.where(np.isnan(chosen), np.float16(-0.0), chosen)
    return drawn


@emulated
def test_arithmetic_in_f16_is_that_in_f32_rounded(tmp_path: Path) -> None:
    arm, cases = target_named("neoverse-v1"), []
    for seed, value in enumerate((*IN_F16.values(), *IN_F32[1:3])):
        made = kernel(value)
        cases.append(Case(made, default_schedule(made, arm), values(made, seed)))
    with np.errstate(all="ignore"):
        outputs: list[Any] = [*kernel_outputs(cases, arm, tmp_path)]
        for case, found in zip(cases, outputs, strict=True):
            expected: Any = evaluate_kernel(case.kernel, case.inputs)
            if case.kernel == kernel(IN_F16["vfmadd"]):  # which rounds less often
                ordinary = np.isfinite(expected) & np.isfinite(found)
                np.testing.assert_allclose(found[ordinary], expected[ordinary], rtol=2**-10)
            else:
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("instruction", [name for name in IN_F16 if name != "vfmadd"])
def test_arithmetic_in_f16_runs_where_the_cpu_has_it(instruction: str) -> None:
    host = host_target()
    if not host.has_half_floats:
        pytest.skip("no run: this CPU does not compute in f16")
    made = kernel(IN_F16[instruction])
    inputs = values(made, 0)
    outcome = run_guarded(made, default_schedule(made, host), inputs, host)
    with np.errstate(all="ignore"):
        expected: Any = evaluate_kernel(made, inputs)
    output: Any = outcome.output
    np.testing.assert_array_equal(output, expected)


@emulated
def test_factors_in_f16_are_widened_as_they_are_multiplied(tmp_path: Path) -> None:
    arm, cases = target_named("neoverse-v1"), []
    for m, k, n in ((1, 64, 40), (7, 33, 17), (5, 128, 3), (16, 30, 32)):
        operands = [TensorType(DType.F16, (m, k)), TensorType(DType.F16, (k, n))]
        made = kernel_of(operands, [("matmul", ["x0", "x1"], {})], ["x1"])
        schedule = default_schedule(made, arm)
        rng = np.random.default_rng(k)
        drawn = {b.name: rng.normal(size=b.shape).astype("f2") for b in made.inputs}
        cases.append(Case(made, schedule, drawn))
        if n > 4:
            text = emit_loops(lower(made, schedule), schedule, arm, "kernel").text
            assert re.search(r"\tfmlal\t", assembly(text, arm))
    outputs: list[Any] = [*kernel_outputs(cases, arm, tmp_path)]
    for case, found in zip(cases, outputs, strict=True):
        expected: Any = evaluate_kernel(case.kernel, case.inputs)
        np.testing.assert_allclose(found, expected, rtol=2**-9, atol=2**-9)
