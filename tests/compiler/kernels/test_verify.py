from __future__ import annotations

from dataclasses import replace

import pytest

from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    Unary,
    add,
    binary,
    cast,
    const,
    index,
    integer,
    mul,
    select,
    sub,
)
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
X = Load(F32, "in0", (Index(I64, "i"),))


def pointwise(body: Expr, extent: int = 4, shape: tuple[int, ...] = (4,)) -> FusedKernel:
    stage = Stage("out", (Axis("i", extent),), (), "", body)
    return FusedKernel("test", (Buffer("in0", F32, shape),), (stage,), "out")


def test_valid_kernel_passes() -> None:
    builder = KernelBuilder()
    a = builder.input(TensorType(F32, (3, 5)))
    b = builder.input(TensorType(F32, (5, 2)))
    product = builder.stage(
        "matmul",
        [("m", 3), ("n", 2)],
        lambda m, n, k: mul(a[m, k], b[k, n]),
        reduce=[("k", 5)],
        combiner="sum",
    )
    builder.stage(
        "relu", [("m", 3), ("n", 2)], lambda m, n: binary("max", product[m, n], const(0, F32))
    )
    verify_kernel(builder.kernel("test", "matmul"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (Load(F32, "in1", (index("i"),)), "in1 is not defined"),
        (Load(F32, "in0", ()), "in0 has 1 axes, indexed with 0"),
        (Load(DType.F64, "in0", (index("i"),)), "in0 of f32 is loaded as f64"),
        (Load(F32, "in0", (Const(DType.I32, 0),)), "in0 is indexed with a i32"),
        (Load(F32, "in0", (index("j"),)), "j is not bound"),
        (Binary(F32, "add", X, Const(DType.F64, 1.0)), "add of f32 and f64"),
        (Binary(F32, "lt", X, X), "lt of f32 as f32"),
        (Binary(F32, "and", X, X), "and of f32"),
        (Binary(F32, "plus", X, X), "unknown function plus"),
        (Unary(F32, "exq", X), "unknown function exq"),
        (Unary(I64, "exp", index("i")), "exp of i64"),
        (Unary(F32, "not", X), "not of f32"),
        (Select(F32, X, X, X), "select on f32"),
        (Select(F32, Const(BOOL, True), X, index("i")), "sides f32 and i64"),
        (Const(F32, 1), "literal of type int"),
        (Const(DType.U8, 256), "outside u8"),
    ],
)
def test_ill_typed_expression_is_refused(body: Expr, reason: str) -> None:
    with pytest.raises(VerifyError, match=reason) as caught:
        verify_kernel(pointwise(body))
    assert "kernel test" in caught.value.program


def test_structure_is_checked() -> None:
    good = pointwise(X)
    stage = good.stages[0]
    cases = {
        "two inputs": replace(good, inputs=good.inputs * 2),
        "extent below 1": replace(good, inputs=(Buffer("in0", F32, (0,)),)),
        "taken twice": replace(good, stages=(stage, stage)),
        "has no stage": replace(good, stages=()),
        "not a stage": replace(good, anchor="nowhere"),
        "axis names repeat": replace(good, stages=(replace(stage, axes=stage.axes * 2),)),
        "combiner is needed": replace(good, stages=(replace(stage, combiner="sum"),)),
        "has the extent 0": replace(good, stages=(replace(stage, axes=(Axis("i", 0),)),)),
        "is not used": replace(good, stages=(stage, replace(stage, name="other"))),
        "does not combine": replace(
            good, stages=(replace(stage, combiner="or", reduce_axes=(Axis("r", 2),)),)
        ),
    }
    verify_kernel(good)
    for reason, kernel in cases.items():
        with pytest.raises(VerifyError, match=reason):
            verify_kernel(kernel)


def load_at(position: Expr) -> Expr:
    return Load(F32, "in0", (position,))


@pytest.mark.parametrize(
    "position",
    [
        add(index("i"), integer(1)),
        sub(index("i"), integer(1)),
        mul(index("i"), integer(2)),
        integer(4),
        binary("floordiv", mul(index("i"), integer(3)), integer(2)),
        binary("max", index("i"), integer(5)),
    ],
)
def test_index_that_provably_leaves_its_extent_is_refused(position: Expr) -> None:
    with pytest.raises(VerifyError, match="the extent is 4"):
        verify_kernel(pointwise(load_at(position)))


@pytest.mark.parametrize(
    "position",
    [
        sub(integer(3), index("i")),
        binary("mod", mul(index("i"), integer(7)), integer(4)),
        binary("min", mul(index("i"), integer(2)), integer(3)),
        sub(add(index("i"), index("i")), index("i")),
        cast(I64, Load(DType.I32, "in1", (index("i"),))),
    ],
)
def test_index_within_its_extent_or_unknown_passes(position: Expr) -> None:
    kernel = pointwise(load_at(position))
    picks = Buffer("in1", DType.I32, (4,))
    verify_kernel(replace(kernel, inputs=(*kernel.inputs, picks)))


def test_select_guards_its_loads_but_not_its_condition() -> None:
    outside = load_at(sub(index("i"), integer(1)))
    guard = binary("ge", index("i"), integer(1))
    verify_kernel(pointwise(select(guard, outside, const(0, F32))))
    unguarded = binary("ge", outside, const(0, F32))
    with pytest.raises(VerifyError, match=r"runs over -1\.\.2"):
        verify_kernel(pointwise(select(unguarded, X, const(0, F32))))


def test_a_load_shared_by_a_guarded_and_an_unguarded_place_is_checked() -> None:
    outside = load_at(add(index("i"), integer(1)))
    guard = binary("lt", index("i"), integer(3))
    with pytest.raises(VerifyError, match=r"runs over 1\.\.4"):
        verify_kernel(pointwise(add(select(guard, outside, X), outside)))


def test_cast_of_anything_is_allowed() -> None:
    verify_kernel(pointwise(Cast(F32, index("i"))))
