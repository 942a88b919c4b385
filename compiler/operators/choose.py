"""One of two values: only the one that is taken has to be computed.

What computes the other is left out when the program runs, see
`tunefarm.compiler.plan.fusion.find_guards`.
"""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import select
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.padding import PaddedUse
from tunefarm.compiler.operators.registry import OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.use import Attributes, Types, Use
from tunefarm.compiler.types.dims import Dims
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


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


def _padding(use: PaddedUse) -> Dims:
    return use.broadcast(1, 2)


register(
    OperatorDefinition(
        "choose",
        Pattern.OPAQUE,
        3,
        _infer,
        _choose,
        alone=True,
        stored=True,
        lazy=True,
        moves=True,
        padding=_padding,
    )
)
"""`choose(condition, then, otherwise)`: a copy of one of two tensors."""
