from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    binary,
    const,
    index,
    integer,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.canonicalise import canonicalise, with_literals
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

F32 = DType.F32


def canonical(build: Callable[[KernelBuilder], None]) -> FusedKernel:
    """The canonical kernel, checked to be valid, to mean the same and to be a fixed point."""
    builder = KernelBuilder()
    build(builder)
    stages = tuple(builder.stages)
    kernel = FusedKernel("test", tuple(builder.inputs), stages, stages[-1].name)
    result, kept = canonicalise(kernel)
    verify_kernel(kernel)
    verify_kernel(result)
    rng = np.random.default_rng(0)
    arrays = {b.name: rng.random(b.shape, dtype=np.float32) for b in kernel.inputs}
    renamed = {b.name: arrays[old] for b, old in zip(result.inputs, kept, strict=True)}
    found: Any = evaluate_kernel(result, renamed)
    expected: Any = evaluate_kernel(kernel, arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    again, _ = canonicalise(result)
    assert kernel_to_json(again) == kernel_to_json(result)
    return result


def names(kernel: FusedKernel) -> list[str]:
    return [stage.name for stage in kernel.stages]


def test_pointwise_chain_becomes_one_stage() -> None:
    def build(builder: KernelBuilder) -> None:
        x = builder.input(TensorType(F32, (3, 4)))
        e = builder.stage("exp", [("i0", 3), ("i1", 4)], lambda i, j: unary("exp", x[i, j]))
        builder.stage("transpose", [("i0", 4), ("i1", 3)], lambda i, j: e[j, i])

    kernel = canonical(build)
    assert names(kernel) == ["transpose"]
    assert kernel.anchor == "transpose"
    assert loads(kernel.output.body)[0].indices == (index("i1"), index("i0"))


def test_padding_stays_a_prologue_and_the_rest_is_one_epilogue() -> None:
    def build(builder: KernelBuilder) -> None:
        x = builder.input(TensorType(F32, (6,)))
        bias = builder.input(TensorType(F32, (6,)))
        pad = builder.stage(
            "pad",
            [("i", 7)],
            lambda i: select(binary("ge", i, integer(1)), x[sub(i, integer(1))], const(0, F32)),
        )
        conv = builder.stage(
            "conv", [("o", 6)], lambda o, k: pad[add(o, k)], reduce=[("k", 2)], combiner="sum"
        )
        shifted = builder.stage("add", [("i0", 6)], lambda i: add(conv[i], bias[i]))
        builder.stage("relu", [("i0", 6)], lambda i: binary("max", shifted[i], const(0, F32)))

    kernel = canonical(build)
    assert names(kernel) == ["pad", "conv", "relu"]
    assert kernel.anchor == "conv"
    assert [axis.name for axis in kernel.output.axes] == ["o"]


def test_expensive_stage_that_is_read_twice_is_kept_before_a_reduction() -> None:
    def build(builder: KernelBuilder) -> None:
        x = builder.input(TensorType(F32, (3, 4)))
        e = builder.stage("exp", [("i0", 3), ("i1", 4)], lambda i, j: unary("exp", x[i, j]))
        total = builder.stage(
            "sum", [("i0", 3)], lambda i, j: e[i, j], reduce=[("i1", 4)], combiner="sum"
        )
        builder.stage(
            "softmax", [("i0", 3), ("i1", 4)], lambda i, j: binary("div", e[i, j], total[i])
        )

    assert names(canonical(build)) == ["exp", "sum", "softmax"]


def test_expensive_stage_that_is_read_once_is_inlined_into_the_reduction() -> None:
    def build(builder: KernelBuilder) -> None:
        x = builder.input(TensorType(F32, (3, 4)))
        e = builder.stage("exp", [("i0", 3), ("i1", 4)], lambda i, j: unary("exp", x[i, j]))
        builder.stage("sum", [("i0", 3)], lambda i, j: e[i, j], reduce=[("i1", 4)], combiner="sum")

    assert names(canonical(build)) == ["sum"]


def test_cheap_stage_between_reductions_is_inlined() -> None:
    def build(builder: KernelBuilder) -> None:
        x = builder.input(TensorType(F32, (3, 4)))
        total = builder.stage(
            "sum", [("i0", 3)], lambda i, j: x[i, j], reduce=[("i1", 4)], combiner="sum"
        )
        mean = builder.stage("mean", [("i0", 3)], lambda i: mul(total[i], const(0.25, F32)))

        def square(i: Expr, j: Expr) -> Expr:
            deviation = sub(x[i, j], mean[i])
            return mul(deviation, deviation)

        builder.stage("var", [("i0", 3)], square, reduce=[("i1", 4)], combiner="sum")

    kernel = canonical(build)
    assert names(kernel) == ["sum", "var"]
    assert kernel.anchor == "var"


def test_unused_input_is_dropped_and_the_rest_renamed() -> None:
    builder = KernelBuilder()
    builder.input(TensorType(F32, (2,)))
    used = builder.input(TensorType(F32, (2,)))
    builder.stage("neg", [("i0", 2)], lambda i: unary("neg", used[i]))
    kernel = builder.kernel("neg", "neg")
    result, kept = canonicalise(kernel)
    assert [buffer.name for buffer in result.inputs] == ["in0"]
    assert kept == ("in1",)


def test_literal_takes_the_place_of_a_one_element_input() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(F32, (2,)))
    one = builder.input(TensorType(F32, (1,)), constant=True)
    builder.stage("add", [("i0", 2)], lambda i: add(x[i], one[integer(0)]))
    kernel = builder.kernel("add", "add")
    result, kept = canonicalise(with_literals(kernel, {"in1": const(1.5, F32)}))
    assert kept == ("in0",)
    assert result.output.body == add(x[index("i0")], const(1.5, F32))


def test_stages_that_a_product_with_zero_does_not_read_are_dropped() -> None:
    i64, builder = DType.I64, KernelBuilder()
    x = builder.input(TensorType(i64, (3, 2)))
    zero = builder.input(TensorType(i64, (1,)), constant=True)
    first = builder.stage("max", [("i0", 3)], lambda i, k: x[i, k], reduce=[("k", 2)],
                          combiner="max")  # fmt: skip
    second = builder.stage("sum", [("i0", 3)], lambda i, k: first[k], reduce=[("k", 3)],
                           combiner="sum")  # fmt: skip
    builder.stage("mul", [("i0", 3)], lambda i: mul(second[i], zero[integer(0)]))
    kernel = builder.kernel("none", "mul")
    result, kept = canonicalise(with_literals(kernel, {"in1": const(0, i64)}))
    verify_kernel(result)
    assert names(result) == ["mul"]
    assert result.anchor == "mul"
    assert kept == ()


def test_block_arithmetic_is_simplified_when_stages_meet() -> None:
    def build(builder: KernelBuilder) -> None:
        x = builder.input(TensorType(F32, (2, 8)))
        plain = builder.stage(
            "plain",
            [("i0", 16)],
            lambda c: x[binary("floordiv", c, integer(8)), binary("mod", c, integer(8))],
        )
        builder.stage(
            "blocked", [("i0", 2), ("i1", 8)], lambda b, c: plain[add(mul(b, integer(8)), c)]
        )

    kernel = canonical(build)
    assert loads(kernel.output.body)[0].indices == (index("i0"), index("i1"))
