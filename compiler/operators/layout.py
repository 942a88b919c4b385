"""Blocked activations: NCHW data as [N, C/b, H, W, b], with the channels' tail padded by zeros."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, add, binary, const, integer, mul, select
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import REQUIRED, Pattern, define
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.tensor_type import TensorType


def _infer_to_blocked(attributes: Attributes, types: Types) -> TensorType:
    type = types.present(0)
    block = attributes.integer("block")
    check(block >= 1, f"the block must be at least 1, not {block}")
    check(len(type.shape) >= 2, f"the data needs the axes N and C, not the shape {type.shape}")
    batch, channels, *spatial = type.shape
    return TensorType(type.dtype, (batch, -(-channels // block), *spatial, block))


def _to_blocked(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)
    block, channels = attributes.integer("block"), data.shape[1]

    def value(indices: tuple[Expr, ...]) -> Expr:
        batch, outer, *spatial, inner = indices
        channel = add(mul(outer, integer(block)), inner)
        element = data[(batch, channel, *spatial)]
        if channels % block == 0:
            return element
        return select(binary("lt", channel, integer(channels)), element, const(0, data.dtype))

    return use.pointwise("to_blocked", value)


def _infer_from_blocked(attributes: Attributes, types: Types) -> TensorType:
    type = types.present(0)
    channels = attributes.integer("channels")
    check(len(type.shape) >= 3, f"{type} is not blocked: it needs the axes N, C and a block")
    batch, blocks, *spatial, block = type.shape
    check(
        (blocks - 1) * block < channels <= blocks * block,
        f"{blocks} blocks of {block} do not hold {channels} channels",
    )
    return TensorType(type.dtype, (batch, channels, *spatial))


def _from_blocked(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)
    block = integer(data.shape[-1])

    def value(indices: tuple[Expr, ...]) -> Expr:
        batch, channel, *spatial = indices
        outer, inner = binary("floordiv", channel, block), binary("mod", channel, block)
        return data[(batch, outer, *spatial, inner)]

    return use.pointwise("from_blocked", value)


for _name, _infer, _expression, _attribute in (
    ("to_blocked", _infer_to_blocked, _to_blocked, "block"),
    ("from_blocked", _infer_from_blocked, _from_blocked, "channels"),
):
    define(
        _name,
        Pattern.INJECTIVE,
        1,
        _infer,
        _expression,
        {_attribute: REQUIRED},
        cheap=True,
        passes=1,
        turns=lambda attributes: True,
    )
