"""Inputs that a result may be written over: what stays where it is, and nothing else reads."""

from __future__ import annotations

import pytest

from tunefarm.compiler.expr.nodes import Expr, add, binary, integer, select, sub
from tunefarm.compiler.kernels.kept_inputs import inputs_kept
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
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
