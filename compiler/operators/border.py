"""A border of one value around the plane of data [N, C, spatial...], blocked or not.

Convolutions assume zeros outside of their data, and leave out products with them. Quantised data
has its zero point there, which is a product like any other: so it is written.
"""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import const
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.blocked import BLOCKED, BlockedForm, BlockedRule, BlockedUse
from tunefarm.compiler.operators.registry import REQUIRED
from tunefarm.compiler.operators.rules import check, pad_stage
from tunefarm.compiler.operators.shape import register_move
from tunefarm.compiler.operators.use import Attributes, Types, Use, axes_of
from tunefarm.compiler.types.tensor_type import TensorType


def _infer_border(attributes: Attributes, types: Types) -> TensorType:
    data, pads = types.present(0), attributes.integers("pads")
    rank = len(pads) // 2
    check(len(pads) % 2 == 0 and min(pads, default=0) >= 0, f"pads {list(pads)} are no border")
    check(2 + rank <= len(data.shape), f"{data} has no {rank} spatial axes")
    check(data.dtype.is_integer, f"{data} is no quantised data")
    least, most = data.dtype.limits
    value = attributes.integer("value")
    check(least <= value <= most, f"the value {value} is none of {data.dtype}")
    spatial = data.shape[2 : 2 + rank]
    padded = (sum(item) for item in zip(spatial, pads[:rank], pads[rank:], strict=True))
    return TensorType(data.dtype, (*data.shape[:2], *padded, *data.shape[2 + rank :]))


def _border(attributes: Attributes, use: Use) -> Tensor:
    data, pads = use.input(0), attributes.integers("pads")
    begins = [0, 0, *pads[: len(pads) // 2], *(0 for _ in use.shape[2 + len(pads) // 2 :])]
    names = [name for name, _ in axes_of(use.shape)]
    value = const(attributes.integer("value"), use.dtype)
    return pad_stage(use.builder, data, names, begins, use.shape, value)


def _blocked_form(use: BlockedUse) -> BlockedForm | None:
    """Where channels are padded, their lanes have the border's value already."""
    lane, value = use.lanes[0], use.attributes.integer("value")
    if lane is None or len(use.result.shape) != 4:
        return None
    return BlockedForm(BLOCKED, lane) if lane == value or use.is_whole(use.result) else None


register_move(
    "border",
    _infer_border,
    _border,
    passes=1,
    blocked=BlockedRule(_blocked_form),
    pads=REQUIRED,
    value=REQUIRED,
)
