from __future__ import annotations

from tunefarm.compiler.expr.nodes import (
    Load,
    add,
    all_of,
    binary,
    const,
    index,
    integer,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.kernels.kernel import KernelBuilder
from tunefarm.compiler.kernels.printer import format_expression, format_kernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

GOLDEN = """\
kernel conv (anchor conv)
  input in0: f32[1, 5]
  input in1: f32[3] constant
  pad[n=1, i=7]: f32 =
    select(i >= 1 and i < 6, in0[n, i - 1], 0.0)
  conv[n=1, o=5]: f32 = sum over k=3 of
    pad[n, o + k] * in1[k]
"""


def test_kernel_reads_like_its_definition() -> None:
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F32, (1, 5)))
    weight = builder.input(TensorType(DType.F32, (3,)), constant=True)
    pad = builder.stage(
        "pad",
        [("n", 1), ("i", 7)],
        lambda n, i: select(
            all_of(binary("ge", i, integer(1)), binary("lt", i, integer(6))),
            data[n, sub(i, integer(1))],
            const(0, DType.F32),
        ),
    )
    builder.stage(
        "conv",
        [("n", 1), ("o", 5)],
        lambda n, o, k: mul(pad[n, add(o, k)], weight[k]),
        reduce=[("k", 3)],
        combiner="sum",
    )
    kernel = builder.kernel("conv", "conv")
    assert format_kernel(kernel) == GOLDEN


def test_parentheses_follow_precedence() -> None:
    a, b, c = index("a"), index("b"), index("c")
    load = Load(DType.F32, "x", (a,))
    assert format_expression(mul(add(a, b), c)) == "(a + b) * c"
    assert format_expression(sub(a, sub(b, c))) == "a - (b - c)"
    assert format_expression(sub(sub(a, b), c)) == "a - b - c"
    assert format_expression(binary("max", add(a, b), c)) == "max(a + b, c)"
    assert format_expression(mul(const(-2.5, DType.F32), load)) == "-2.5 * x[a]"
    assert format_expression(sub(load, const(-2.5, DType.F32))) == "x[a] - -2.5"


def test_long_shared_expression_is_printed_once() -> None:
    long = unary(
        "exp", unary("exp", mul(const(0.123456789123456, DType.F64), const(2.5, DType.F64)))
    )
    text = format_expression(add(long, mul(long, long)))
    assert text == "t0 + t0 * t0 where t0 = exp(exp(0.123456789123456 * 2.5))"
