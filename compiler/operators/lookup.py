"""A function of 8 bits as the table of its 256 results: y = table[x], by the bits of x."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, cast
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.padding import unchanged
from tunefarm.compiler.operators.registry import OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check, check_dtype
from tunefarm.compiler.operators.use import Attributes, Types, Use
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

BYTES = frozenset((DType.U8, DType.I8))
ENTRIES = 256


def _infer(attributes: Attributes, types: Types) -> TensorType:
    data, table = types.present(0), types.present(1)
    check_dtype(data, BYTES, "the data")
    check_dtype(table, BYTES, "the table")
    check(table.shape == (ENTRIES,), f"the table {table} has not {ENTRIES} entries")
    return TensorType(table.dtype, data.shape)


def _lookup(attributes: Attributes, use: Use) -> Tensor:
    data, table = use.input(0), use.input(1)

    def body(indices: tuple[Expr, ...]) -> Expr:
        return table[(cast(DType.I64, cast(DType.U8, data[indices])),)]

    return use.pointwise("lookup", body)


register(
    OperatorDefinition(
        "lookup",
        Pattern.ELEMENTWISE,
        2,
        _infer,
        _lookup,
        cheap=True,
        looked_up=1,
        padding=unchanged,
    )
)
