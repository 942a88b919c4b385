"""Kernels of narrow factors: right ones pass whatever their schedule, faulty ones are refused."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.graph.test_random_graphs import IMAGE_KINDS, KINDS, random_graph
from tests.compiler.schedule.guarded_run import run_guarded, targets
from tunefarm.compiler.expr.nodes import Expr, add, cast, integer, mul
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, KernelCall, Tensor
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.llvm import compile_kernel
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.schedule.spaces import naive_schedule, schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import BF16_NUMERICS, F16_NUMERICS, Numerics, is_narrow
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.measure.sandbox.messages import InFlight
from tunefarm.measure.worker.build_candidate import BuiltCandidate
from tunefarm.measure.worker.reference import make_inputs, rounding_of
from tunefarm.measure.worker.run_candidate import CandidateRunner
from tunefarm.measure.worker.timer import TimingOptions
from tunefarm.measure.worker.workload import compare_output

BF16, F32, I32 = DType.BF16, DType.F32, DType.I32
ROWS, COLUMNS, TERMS, PARTS = 24, 32, 256, 16
QUICK = TimingOptions.of({"samples": 3, "min_sample_seconds": 1e-4, "unstable_limit": 9})
TARGETS = targets()


def operands(builder: KernelBuilder, left: DType, right: DType) -> tuple[Tensor, Tensor]:
    return (
        builder.input(TensorType(left, (ROWS, TERMS))),
        builder.input(TensorType(right, (TERMS, COLUMNS))),
    )


def product(
    stored: DType, left: DType = BF16, right: DType = BF16, terms: int = TERMS
) -> FusedKernel:
    """A matrix product of narrow factors, summed in their accumulator and stored as said."""
    builder = KernelBuilder()
    a, b = operands(builder, left, right)
    wide = F32 if left.is_float else I32
    total = builder.stage(
        "matmul",
        [("m", ROWS), ("n", COLUMNS)],
        lambda m, n, k: mul(cast(wide, a[m, k]), cast(wide, b[k, n])),
        reduce=[("k", terms)],
        combiner="sum",
    )
    if stored is not wide:
        axes = [("m", ROWS), ("n", COLUMNS)]
        builder.stage("stored", axes, lambda m, n: cast(stored, total[m, n]))
    return kernel_of(builder)


def kernel_of(builder: KernelBuilder) -> FusedKernel:
    output = builder.stages[-1].name
    return builder.kernel("product", output)


def summed_in_bf16(stored: DType) -> FusedKernel:
    """The product of bf16, with sums of few terms rounded to bf16 as they are added up."""
    builder = KernelBuilder()
    a, b = operands(builder, BF16, BF16)
    axes, size = [("m", ROWS), ("n", COLUMNS)], TERMS // PARTS
    before: Tensor | None = None
    for part in range(PARTS):

        def term(m: Expr, n: Expr, k: Expr, part: int = part) -> Expr:
            at = add(k, integer(part * size))
            return mul(cast(F32, a[m, at]), cast(F32, b[at, n]))

        total = builder.stage(f"part{part}", axes, term, reduce=[("k", size)], combiner="sum")

        def rounded(
            m: Expr, n: Expr, total: Tensor = total, before: Tensor | None = before
        ) -> Expr:
            value: Expr = total[m, n]
            if before is not None:
                value = add(cast(F32, before[m, n]), value)
            return cast(BF16, value)

        before = builder.stage(f"rounded{part}", axes, rounded)
    assert before is not None
    last = before
    if stored is F32:
        builder.stage("stored", axes, lambda m, n: cast(F32, last[m, n]))
    return kernel_of(builder)


def summed_in_pairs_of_16_bits() -> FusedKernel:
    """The product of bytes, whose products are added up by twos in 16 bits."""
    builder = KernelBuilder()
    a, b = operands(builder, DType.U8, DType.I8)

    def pair(m: Expr, n: Expr, k: Expr) -> Expr:
        first = mul(k, integer(2))
        both = [
            mul(cast(I32, a[m, at]), cast(I32, b[at, n])) for at in (first, add(first, integer(1)))
        ]
        return cast(I32, cast(DType.I16, add(*both)))

    axes = [("m", ROWS), ("n", COLUMNS)]
    builder.stage("matmul", axes, pair, reduce=[("k", TERMS // 2)], combiner="sum")
    return kernel_of(builder)


@pytest.fixture
def measure(tmp_path: Path) -> Callable[[FusedKernel, FusedKernel], MeasureResult]:
    """Measures the code of a kernel as a candidate of another one."""
    runner = CandidateRunner(tmp_path, 1, sorted(os.sched_getaffinity(0)), InFlight(-1))

    def run(wanted: FusedKernel, built: FusedKernel) -> MeasureResult:
        compiled = compile_kernel(built, naive_schedule(), host_target())
        candidate = BuiltCandidate(compiled.symbol, compiled.object_code, compiled.workspace_bytes)
        return runner.run(kernel_to_json(wanted), workload_key(wanted), [candidate], QUICK).result

    return run


@pytest.mark.parametrize("stored", [F32, BF16])
def test_a_product_in_f32_passes_and_one_that_rounds_its_sums_or_drops_a_term_does_not(
    stored: DType, measure: Callable[[FusedKernel, FusedKernel], MeasureResult]
) -> None:
    wanted = product(stored)
    assert measure(wanted, wanted).status is Status.OK
    for wrong in (product(stored, terms=TERMS - 1), summed_in_bf16(stored)):
        assert measure(wanted, wrong).status is Status.WRONG_RESULT


def test_integers_that_saturate_are_refused(
    measure: Callable[[FusedKernel, FusedKernel], MeasureResult],
) -> None:
    wanted = product(I32, DType.U8, DType.I8)
    assert measure(wanted, wanted).status is Status.OK
    assert measure(wanted, summed_in_pairs_of_16_bits()).status is Status.WRONG_RESULT


@pytest.mark.parametrize("numerics", [BF16_NUMERICS, F16_NUMERICS], ids=lambda item: item.name)
@pytest.mark.parametrize("kinds", [KINDS, IMAGE_KINDS], ids=["any", "images"])
def test_kernels_of_a_narrowed_graph_pass_under_drawn_schedules(
    kinds: tuple[str, ...], numerics: Numerics
) -> None:
    rng, checked = random.Random(0), 0
    for seed in range(10):
        target = TARGETS[rng.choice(sorted(TARGETS))]
        graph = optimise(random_graph(seed, kinds), target.lanes(F32), numerics=numerics)
        kernels = {
            call.key: call.kernel
            for call in extract_kernels(graph).calls
            if isinstance(call, KernelCall) and _is_narrow(call.kernel)
        }
        for key, kernel in kernels.items():
            space = schedule_space(kernel, target, 1, numerics)
            schedule = space.schedule(space.candidate(rng.randrange(space.size)))
            inputs = make_inputs(kernel, seed, key)
            with np.errstate(all="ignore"):
                expected = evaluate_kernel(kernel, inputs)
            outcome = run_guarded(kernel, schedule, inputs, target)
            assert not outcome.problem
            wrong = compare_output(outcome.output, expected, rounding_of(kernel))
            assert wrong is None, f"{kernel.name} of seed {seed}: {wrong}"
            checked += 1
    assert checked > 5


def _is_narrow(kernel: FusedKernel) -> bool:
    return any(map(is_narrow, (*(item.dtype for item in kernel.inputs), kernel.output.dtype)))
