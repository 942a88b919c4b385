"""Inputs that a result may be written over: what stays where it is, and nothing else reads."""

from __future__ import annotations

import pytest

from tunefarm.compiler.expr.nodes import Expr, add, binary, cast, integer, select, sub
from tunefarm.compiler.kernels.kept_inputs import inputs_kept
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder, ValidExtent
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

ROWS, PAST = 8, 5


def cache(kind: str) -> FusedKernel:
    """present[0, i, j] = past[0, i, j] where i < PAST, else something of the other input."""
    builder = KernelBuilder()
    past = builder.input(TensorType(DType.F32, (1, ROWS, 4)))
    other_shape = (1, ROWS, 4) if kind == "no case" else (1, ROWS + 1, 4)
    new = builder.input(TensorType(DType.F32, other_shape))

    def value(n: Expr, i: Expr, j: Expr) -> Expr:
        row = {"shifted": sub(i, integer(1)), "first row": integer(0)}.get(kind, i)
        at = integer(0) if kind == "the one batch" else n
        kept, added = past[at, row, j], new[n, i, j]
        if kind == "read elsewhere":
            added = add(added, past[n, integer(0), j])
        return select(binary("lt", i, integer(PAST)), kept, added)

    builder.stage("present", [("n", 1), ("i", ROWS), ("j", 4)], value)
    return builder.kernel("present", "present")


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("a cache", (0,)),
        ("the one batch", (0,)),
        ("no case", (0, 1)),  # both are read where they are
        ("shifted", ()),
        ("first row", ()),
        ("read elsewhere", ()),
    ],
)
def test_an_input_is_kept_where_each_element_stays_or_is_replaced(
    kind: str, kept: tuple[int, ...]
) -> None:
    assert inputs_kept(cache(kind)) == kept


@pytest.mark.parametrize(
    ("limits", "kept"), [((ValidExtent(4, ROWS, "sizes", 0),), (0,)), ((), ())]
)
def test_a_cache_in_half_precision_that_grows_is_kept(
    limits: tuple[ValidExtent, ...], kept: tuple[int, ...]
) -> None:
    """What is computed of it in f32 is what was stored; code of fixed sizes stays as it was."""
    builder = KernelBuilder()
    past = builder.input(TensorType(DType.F16, (ROWS, 4)))
    new = builder.input(TensorType(DType.F16, (ROWS + 1, 4)))

    def value(i: Expr, j: Expr) -> Expr:
        before, added = (cast(DType.F32, data[i, j]) for data in (past, new))
        grown = select(binary("lt", i, integer(PAST)), before, add(added, added))
        return cast(DType.F16, grown)

    builder.stage("present", [("i", ROWS), ("j", 4)], value)
    assert inputs_kept(builder.kernel("present", "present", limits)) == kept
