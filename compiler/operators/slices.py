"""Slices, frames of a signal, and moves by as many elements as a run says.

    slice           y[i, j, …] = x[starts[0] + steps[0] * i, starts[1] + steps[1] * j, …]
    frames          y[i, j, …] = x[step * i + j, …]
    shift           y[…, i, …] = x[…, p, …] with p = sizes[start] + step * i, below sizes[end]
    ragged_concat   y[…, i, …] = a[…, i, …] where i < sizes[ends[0]], else
                                 b[…, i - sizes[ends[0]], …] where i < sizes[ends[1]], …
    merge_rows      y[…, i, …] = x[…, i // w, i % w, …] with w = sizes[columns], below sizes[rows]

Slices of blocked data begin with a whole block.

Where an operand of a shift or ragged concat has no such element, there is 0, or the one element
that is a third operand of a shift. The first part of a ragged concat lies in a place as long as the
whole. Rows that are merged lie side by side: a kernel writes them so (`plan.sizes.pitches`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    all_of,
    binary,
    const,
    integer,
    mul,
    select,
    sub,
)
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.blocked import BLOCKED, BlockedForm, BlockedRule, BlockedUse, Shape
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    Positions,
    define,
)
from tunefarm.compiler.operators.rules import check, check_same_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.operators.windows import window_count
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import Axis, extent_of, is_unpadded, size_of, whole
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
    """All channels; whole blocks of them where that is decided."""
    data, taken = use.types.present(0), use.result.shape
    starts, steps = use.attributes.integers("starts"), use.attributes.integers("steps")
    of_all = len(taken) == 4 and taken[1] == data.shape[1] and steps[1] == 1
    if of_all and (use.lanes[0] is not None or use.is_whole(use.result)):
        return BlockedForm(BLOCKED, use.lanes[0] or 0.0)
    if not use.decided or len(taken) != 4 or starts[1] % use.block or steps[1] != 1:
        return None
    return BlockedForm(BLOCKED, 0.0) if taken[1] % use.block == 0 else None


def _slice_of_blocks(
    attributes: Attributes, shapes: Sequence[Shape], block: int
) -> dict[str, Attribute]:
    starts, shape = list(attributes.integers("starts")), list(attributes.integers("shape"))
    starts[1] //= block
    shape[1] = -(-shape[1] // block)
    steps = attributes.integers("steps")
    return {"starts": (*starts, 0), "steps": (*steps, 1), "shape": (*shape, block)}


define(
    "slice",
    Pattern.INJECTIVE,
    1,
    _infer_slice,
    _slice,
    {"starts": REQUIRED, "steps": REQUIRED, "shape": REQUIRED},
    cheap=True,
    passes=1,
    blocked=BlockedRule(_blocked_slice, adapted=_slice_of_blocks),
    dynamic=True,
)

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


define(
    "frames",
    Pattern.INJECTIVE,
    1,
    _infer_frames,
    _frames,
    {"axis": REQUIRED, "count": REQUIRED, "length": REQUIRED, "step": REQUIRED},
    cheap=True,
    dynamic=True,
)


# --- shift ---------------------------------------------------------------------------------------


def _infer_shift(attributes: Attributes, types: Types) -> TensorType:
    """The importer says how much of the result is there."""
    data, sizes, value = types.present(0), types.present(1), types.optional(2)
    axis, extent = attributes.axis("axis", len(data.shape)), attributes.integer("extent")
    check(sizes.dtype is DType.I64 and len(sizes.shape) == 1, f"{sizes} is no vector of sizes")
    start, end = attributes.integer("start"), attributes.integer("end")
    check(0 <= min(start, end) <= max(start, end) < sizes.size, f"{sizes} has no such element")
    check(extent >= 1, f"{extent} elements of an axis")
    if value is not None:
        check(value.dtype is data.dtype and value.size == 1, f"{value} is no value of {data}")
    types.require_whole(0, axis, "an axis that is read from a place of the run on")
    return TensorType.of(data.dtype, (*data.dims[:axis], whole(extent), *data.dims[axis + 1 :]))


def _shift(attributes: Attributes, use: Use) -> Tensor:
    data, sizes, given = use.input(0), use.input(1), use.optional(2)
    axis, step = attributes.integer("axis"), integer(attributes.integer("step"))
    start, end = attributes.integer("start"), attributes.integer("end")
    value: Expr = const(0, use.dtype)
    if given is not None:
        value = given[tuple(integer(0) for _ in given.shape)]

    def body(indices: tuple[Expr, ...]) -> Expr:
        place = add(mul(indices[axis], step), sizes[(integer(start),)])
        is_there = all_of(
            binary("ge", place, integer(0)), binary("lt", place, sizes[(integer(end),)])
        )
        return _element(data, indices, axis, place, is_there, value)

    return use.pointwise("shift", body)


def _element(
    data: Tensor,
    indices: tuple[Expr, ...],
    axis: int,
    place: Expr,
    is_there: Expr,
    value: Expr,
) -> Expr:
    """The element at a place of an axis where it is there and within the axis, else `value`."""
    within = all_of(is_there, binary("lt", place, integer(data.shape[axis])))
    return select(within, data[(*indices[:axis], place, *indices[axis + 1 :])], value)


def _shift_positions(attributes: Attributes) -> Positions:
    return Positions.PLAIN if attributes["step"] in (0, 1) else Positions.LOOKED_UP


define(
    "shift",
    Pattern.INJECTIVE,
    (2, 3),
    _infer_shift,
    _shift,
    {"axis": REQUIRED, "start": REQUIRED, "end": REQUIRED, "extent": REQUIRED, "step": 1},
    cheap=True,
    passes=1,
    positions=_shift_positions,
    dynamic=True,
)

# --- ragged_concat -------------------------------------------------------------------------------


def _infer_ragged_concat(attributes: Attributes, types: Types) -> TensorType:
    """The importer says how much of the result is there."""
    sizes, first = types.present(0), types.present(1)
    parts = [types.present(position) for position in range(1, len(types))]
    axis = attributes.axis("axis", len(first.shape))
    check(sizes.dtype is DType.I64 and len(sizes.shape) == 1, f"{sizes} is no vector of sizes")
    ends = attributes.integers("ends")
    check(len(ends) == len(parts) - 1, f"{len(parts)} parts with {len(ends)} ends")
    check(all(0 <= end < sizes.size for end in ends), f"{sizes} has no such ends")
    check_same_dtype(*parts)
    differ = f"the parts differ outside axis {axis}"
    check(all(len(part.shape) == len(first.shape) for part in parts), differ)
    for position in range(1, len(types)):
        types.require_whole(position, axis, "a part of a concatenation")
    dims = [whole(first.shape[axis])] * len(first.shape)
    for other in range(len(dims)):
        if other != axis:
            places = ((position, other) for position in range(1, len(types)))
            dims[other] = types.same(*places, otherwise=differ)
    return TensorType.of(first.dtype, tuple(dims))


def _ragged_concat(attributes: Attributes, use: Use) -> Tensor:
    sizes, axis = use.input(0), attributes.integer("axis")
    parts = [use.input(position) for position in range(1, len(use.inputs))]
    ends = [sizes[(integer(number),)] for number in attributes.integers("ends")]

    def body(indices: tuple[Expr, ...]) -> Expr:
        place = indices[axis]
        result: Expr = const(0, use.dtype)
        for number, part in reversed(list(enumerate(parts))):
            element = part[indices]
            if number:
                own = sub(place, ends[number - 1])
                begun = binary("ge", own, integer(0))
                element = _element(part, indices, axis, own, begun, const(0, use.dtype))
            if number < len(ends):
                element = select(binary("lt", place, ends[number]), element, result)
            result = element
        return result

    return use.pointwise("concat", body)


define(
    "ragged_concat",
    Pattern.INJECTIVE,
    (3, None),
    _infer_ragged_concat,
    _ragged_concat,
    {"axis": REQUIRED, "ends": REQUIRED},
    cheap=True,
    passes=1,
    dynamic=True,
)

# --- merge_rows ----------------------------------------------------------------------------------


def _infer_merge_rows(attributes: Attributes, types: Types) -> TensorType:
    """The importer says how much of the result is there."""
    data, sizes = types.present(0), types.present(1)
    axis = attributes.axis("axis", len(data.shape) - 1)
    check(sizes.dtype is DType.I64 and len(sizes.shape) == 1, f"{sizes} is no vector of sizes")
    numbers = [attributes.integer(name) for name in ("rows", "columns")]
    check(all(0 <= number < sizes.size for number in numbers), f"{sizes} has no such element")
    for position in (axis, axis + 1):
        types.require_whole(0, position, "rows that are merged")
    merged = whole(data.shape[axis] * data.shape[axis + 1])
    return TensorType.of(data.dtype, (*data.dims[:axis], merged, *data.dims[axis + 2 :]))


def _merge_rows(attributes: Attributes, use: Use) -> Tensor:
    data, sizes, axis = use.input(0), use.input(1), attributes.integer("axis")
    rows, columns = (sizes[(integer(attributes.integer(name)),)] for name in ("rows", "columns"))
    width = binary("max", binary("min", columns, integer(data.shape[axis + 1])), integer(1))

    def body(indices: tuple[Expr, ...]) -> Expr:
        before, place, behind = indices[:axis], indices[axis], indices[axis + 1 :]
        row, column = binary("floordiv", place, width), binary("mod", place, width)
        element = data[(*before, row, column, *behind)]
        within = all_of(binary("lt", row, rows), binary("lt", row, integer(data.shape[axis])))
        return select(within, element, const(0, use.dtype))

    return use.pointwise("rows", body)


define(
    "merge_rows",
    Pattern.OPAQUE,
    2,
    _infer_merge_rows,
    _merge_rows,
    {"axis": REQUIRED, "rows": REQUIRED, "columns": REQUIRED},
    passes=1,
    alone=True,
    dynamic=True,
)
