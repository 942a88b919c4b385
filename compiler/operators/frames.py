"""Windows of a fixed length that start at equal distances along an axis: frames of a signal."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, add, integer, mul
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.padding import PaddedUse
from tunefarm.compiler.operators.registry import REQUIRED
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.shape import register_move
from tunefarm.compiler.operators.use import Attributes, Types, Use
from tunefarm.compiler.operators.windows import window_count
from tunefarm.compiler.types.dims import Dims, is_unpadded, whole
from tunefarm.compiler.types.tensor_type import TensorType


def _infer(attributes: Attributes, types: Types) -> TensorType:
    data = types.present(0)
    axis = attributes.axis("axis", len(data.shape))
    count, length, step = (attributes.integer(name) for name in ("count", "length", "step"))
    check(min(count, length, step) >= 1, f"{count} frames of {length} in steps of {step}")
    last = (count - 1) * step + length
    check(last <= data.shape[axis], f"frames reach to {last} of {data}")
    return TensorType(data.dtype, (*data.shape[:axis], count, length, *data.shape[axis + 1 :]))


def _frames(attributes: Attributes, use: Use) -> Tensor:
    data, axis = use.input(0), attributes.integer("axis")
    step = integer(attributes.integer("step"))

    def body(indices: tuple[Expr, ...]) -> Expr:
        place = add(mul(indices[axis], step), indices[axis + 1])
        return data[(*indices[:axis], place, *indices[axis + 2 :])]

    return use.pointwise("frames", body)


def _padding(use: PaddedUse) -> Dims:
    """As many frames as the elements that are there have room for."""
    data, axis = use.operand(0), use.attributes.integer("axis")
    count, length, step = (use.attributes.integer(name) for name in ("count", "length", "step"))
    frames = whole(count)
    if not is_unpadded(data[axis]):
        use.require_in_one_piece(0, axis, "frames of an axis")
        frames = ((window_count(data[axis][0][0], length, step, 0), count),)
    return *data[:axis], frames, whole(length), *data[axis + 1 :]


register_move(
    "frames",
    _infer,
    _frames,
    axis=REQUIRED,
    count=REQUIRED,
    length=REQUIRED,
    step=REQUIRED,
    padding_rule=_padding,
)
