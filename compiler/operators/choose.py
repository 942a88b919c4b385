"""One of two values: only the one that is taken has to be computed.

What computes the other is left out when the program runs, see `compiler.plan.fusion.find_guards`.
"""

from __future__ import annotations

from compiler.expr.nodes import select
from compiler.kernels.kernel import Tensor
from compiler.operators.registry import OperatorDefinition, Pattern, register
from compiler.operators.rules import check
from compiler.operators.use import Attributes, Types, Use
from compiler.types.dtypes import DType
from compiler.types.tensor_type import TensorType


def _infer(attributes: Attributes, types: Types) -> TensorType:
    condition, then, otherwise = (types.present(position) for position in range(3))
    check(condition == TensorType(DType.BOOL, ()), f"the condition is no bool, but {condition}")
    check(then == otherwise, f"one value is {then}, the other one {otherwise}")
    return then


def _choose(attributes: Attributes, use: Use) -> Tensor:
    condition, then, otherwise = (use.input(position) for position in range(3))
    return use.pointwise(
        "chosen", lambda indices: select(condition[()], then[indices], otherwise[indices])
    )


register(
    OperatorDefinition(
        "choose", Pattern.OPAQUE, 3, _infer, _choose, alone=True, stored=True, lazy=True, moves=True
    )
)
"""`choose(condition, then, otherwise)`: a copy of one of two tensors."""
