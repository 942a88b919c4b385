"""Some of the channels of what one convolution makes for several, on plain and on blocked data.

    y[n, c, ...] = x[n, start + c, ...]

On blocked data they begin with a whole block. Behind the last one lie the channels of the next,
unless whoever joined them put padding there: `lane` is the number that it holds.
"""

from __future__ import annotations

from compiler.expr.nodes import Expr, add, integer
from compiler.kernels.kernel import Tensor
from compiler.operators.blocked import BLOCKED, BlockedForm, BlockedRule, BlockedUse
from compiler.operators.registry import REQUIRED
from compiler.operators.rules import check
from compiler.operators.shape import register_move
from compiler.operators.use import Attributes, Types, Use
from compiler.types.tensor_type import TensorType

_LAYOUTS = ("NCHW", BLOCKED)


def _infer(attributes: Attributes, types: Types) -> TensorType:
    type, layout = types.present(0), attributes.choice("layout", _LAYOUTS)
    start, count = attributes.integer("start"), attributes.integer("count")
    attributes.number("lane")
    check(len(type.shape) >= 2, f"the data needs the axes N and C, not the shape {type.shape}")
    block = type.shape[-1] if layout == BLOCKED else 1
    check(start % block == 0, f"channel {start} begins no block of {block}")
    taken = -(-count // block)
    fits = start >= 0 and count >= 1 and start // block + taken <= type.shape[1]
    check(fits, f"{type} has no {count} channels from {start} on")
    return TensorType(type.dtype, (type.shape[0], taken, *type.shape[2:]))


def _channels(attributes: Attributes, use: Use) -> Tensor:
    data, start = use.input(0), attributes.integer("start")
    if attributes["layout"] == BLOCKED:
        start //= data.shape[-1]

    def value(indices: tuple[Expr, ...]) -> Expr:
        batch, channel, *rest = indices
        return data[(batch, add(channel, integer(start)), *rest)]

    return use.pointwise("channels", value)


def _blocked(use: BlockedUse) -> BlockedForm | None:
    """Whole blocks, or such whose last lanes hold a known number."""
    data, attributes = use.types.present(0), use.attributes
    start, count = attributes.integer("start"), attributes.integer("count")
    if attributes["layout"] == BLOCKED or len(data.shape) != 4 or start % use.block:
        return None
    if count % use.block == 0:
        return BlockedForm(BLOCKED, 0.0)
    end, channels = start + count, data.shape[1]
    if end == channels and use.lanes[0] is not None:
        return BlockedForm(BLOCKED, use.lanes[0])
    padded = attributes.integer("padding") >= -count % use.block
    return BlockedForm(BLOCKED, float(attributes.number("lane"))) if padded else None


register_move(
    "channels",
    _infer,
    _channels,
    passes=1,
    blocked=BlockedRule(_blocked),
    start=REQUIRED,
    count=REQUIRED,
    padding=0,
    lane=0.0,
    layout="NCHW",
)
"""`channels(x)`: behind those that are taken lie `padding` channels that hold the number `lane`."""
