"""Slices, channels of what one convolution makes for several, and frames of a signal.

    slice       y[i, j, …] = x[starts[0] + steps[0] * i, starts[1] + steps[1] * j, …]
    channels    y[n, c, …] = x[n, start + c, …]
    frames      y[i, j, …] = x[step * i + j, …]

Slices and channels of blocked data begin with a whole block. Behind the last of some channels lie
those of the next branch, unless whoever joined them put padding there: `lane` is the number that it
holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.expr.nodes import Expr, add, integer, mul
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.blocked import BLOCKED, BlockedForm, BlockedRule, BlockedUse, Shape
from tunefarm.compiler.operators.registry import REQUIRED
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.shape import register_move
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.operators.windows import window_count
from tunefarm.compiler.types.dims import Axis, extent_of, is_unpadded, size_of, whole
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

# --- slice ---------------------------------------------------------------------------------------


def _least_size(axis: Axis) -> int | None:
    """How many elements an axis has at least, from its first one on without gaps."""
    if len(axis) > 1:
        return None
    ((true, _),) = axis
    return true if isinstance(true, int) else true.bounds[0]


def _infer_slice(attributes: Attributes, types: Types) -> TensorType:
    """Axes are kept as they are, or all that is taken of them is there."""
    type = types.present(0)
    starts, steps, shape = (attributes.integers(name) for name in ("starts", "steps", "shape"))
    check(
        len(starts) == len(steps) == len(shape) == len(type.shape),
        f"starts, steps and shape need one entry for each of the {len(type.shape)} axes",
    )
    dims: list[Axis] = []
    for axis, (start, step, count, given) in enumerate(
        zip(starts, steps, shape, type.dims, strict=True)
    ):
        last, extent = start + (count - 1) * step, extent_of(given)
        check(step != 0, f"the step of axis {axis} is 0")
        check(
            count < 1 or (0 <= start < extent and 0 <= last < extent),
            f"axis {axis} reads from {start} to {last}, but has the size {extent}",
        )
        is_kept = start == 0 and step == 1 and count == extent
        least = _least_size(given)
        if not (is_unpadded(given) or is_kept) and (least is None or max(start, last) >= least):
            raise ShapeError(
                f"positions {start} to {last} of an axis of {size_of(given)} need not be there"
            )
        dims.append(given if is_kept else whole(count))
    return TensorType.of(type.dtype, tuple(dims))


def _slice(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)
    starts, steps = attributes.integers("starts"), attributes.integers("steps")

    def value(indices: tuple[Expr, ...]) -> Expr:
        return data[
            tuple(
                add(mul(position, integer(step)), integer(start))
                for position, start, step in zip(indices, starts, steps, strict=True)
            )
        ]

    return use.pointwise("slice", value)


def _blocked_slice(use: BlockedUse) -> BlockedForm | None:
    """All channels; whole blocks of them, or the last ones, where a plan asks for them."""
    data, taken = use.types.present(0), use.result.shape
    starts, steps = use.attributes.integers("starts"), use.attributes.integers("steps")
    of_all = len(taken) == 4 and taken[1] == data.shape[1] and steps[1] == 1
    if of_all and (use.lanes[0] is not None or use.is_whole(use.result)):
        return BlockedForm(BLOCKED, use.lanes[0] or 0.0)
    if not use.decided or len(taken) != 4 or starts[1] % use.block or steps[1] != 1:
        return None
    if taken[1] % use.block == 0:
        return BlockedForm(BLOCKED, 0.0)
    at_the_end = starts[1] + taken[1] == data.shape[1] and use.lanes[0] is not None
    return BlockedForm(BLOCKED, use.lanes[0] or 0.0) if at_the_end else None


def _slice_of_blocks(
    attributes: Attributes, shapes: Sequence[Shape], block: int
) -> dict[str, Attribute]:
    starts, shape = list(attributes.integers("starts")), list(attributes.integers("shape"))
    starts[1] //= block
    shape[1] = -(-shape[1] // block)
    steps = attributes.integers("steps")
    return {"starts": (*starts, 0), "steps": (*steps, 1), "shape": (*shape, block)}


# --- channels ------------------------------------------------------------------------------------

_LAYOUTS = ("NCHW", BLOCKED)


def _infer_channels(attributes: Attributes, types: Types) -> TensorType:
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


def _blocked_channels(use: BlockedUse) -> BlockedForm | None:
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
    "slice",
    _infer_slice,
    _slice,
    passes=1,
    blocked=BlockedRule(_blocked_slice, adapted=_slice_of_blocks),
    starts=REQUIRED,
    steps=REQUIRED,
    shape=REQUIRED,
    dynamic=True,
)
register_move(
    "channels",
    _infer_channels,
    _channels,
    passes=1,
    blocked=BlockedRule(_blocked_channels),
    start=REQUIRED,
    count=REQUIRED,
    padding=0,
    lane=0.0,
    layout="NCHW",
)
"""`channels(x)`: behind those that are taken lie `padding` channels that hold the number `lane`."""


# --- frames --------------------------------------------------------------------------------------


def _infer_frames(attributes: Attributes, types: Types) -> TensorType:
    """As many frames as the elements that are there have room for."""
    data = types.present(0)
    axis = attributes.axis("axis", len(data.shape))
    count, length, step = (attributes.integer(name) for name in ("count", "length", "step"))
    check(min(count, length, step) >= 1, f"{count} frames of {length} in steps of {step}")
    last = (count - 1) * step + length
    check(last <= data.shape[axis], f"frames reach to {last} of {data}")
    given, frames = data.dims[axis], whole(count)
    if not is_unpadded(given):
        types.require_in_one_piece(0, axis, "frames of an axis")
        frames = ((window_count(given[0][0], length, step, 0), count),)
    dims = (*data.dims[:axis], frames, whole(length), *data.dims[axis + 1 :])
    return TensorType.of(data.dtype, dims)


def _frames(attributes: Attributes, use: Use) -> Tensor:
    data, axis = use.input(0), attributes.integer("axis")
    step = integer(attributes.integer("step"))

    def body(indices: tuple[Expr, ...]) -> Expr:
        place = add(mul(indices[axis], step), indices[axis + 1])
        return data[(*indices[:axis], place, *indices[axis + 2 :])]

    return use.pointwise("frames", body)


register_move(
    "frames",
    _infer_frames,
    _frames,
    axis=REQUIRED,
    count=REQUIRED,
    length=REQUIRED,
    step=REQUIRED,
    dynamic=True,
)
