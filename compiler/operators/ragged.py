"""Moves by as many elements as a run says.

    shift           y[…, i, …] = x[…, p, …] with p = sizes[start] + step * i, below sizes[end]
    ragged_concat   y[…, i, …] = a[…, i, …] where i < sizes[ends[0]], else
                                 b[…, i - sizes[ends[0]], …] where i < sizes[ends[1]], …

Where an operand has no such element, there is 0, or the one element that is a third operand of a
shift. The first part of a concat lies in a place that is as long as the whole.
"""

from __future__ import annotations

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
from tunefarm.compiler.operators.registry import REQUIRED
from tunefarm.compiler.operators.rules import check, check_same_dtype
from tunefarm.compiler.operators.shape import register_move
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dims import whole
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

# --- shift ---------------------------------------------------------------------------------------


def _infer_shift(attributes: Attributes, types: Types) -> TensorType:
    """The importer says how much of the result is there."""
    data, sizes, value = types.present(0), types.present(1), types.optional(2)
    axis, extent = attributes.axis("axis", len(data.shape)), attributes.integer("extent")
    check(sizes.dtype is DType.I64 and len(sizes.shape) == 1, f"{sizes} is no vector of sizes")
    start, end = attributes.integer("start"), attributes.integer("end")
    check(0 <= start < sizes.size and -1 <= end < sizes.size, f"{sizes} has no such element")
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
        is_there = binary("ge", place, integer(0))
        if end >= 0:
            is_there = all_of(is_there, binary("lt", place, sizes[(integer(end),)]))
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


register_move(
    "shift",
    _infer_shift,
    _shift,
    inputs=(2, 3),
    passes=1,
    axis=REQUIRED,
    start=REQUIRED,
    extent=REQUIRED,
    step=1,
    end=-1,
    dynamic=True,
)

# --- ragged_concat -------------------------------------------------------------------------------


def _infer_concat(attributes: Attributes, types: Types) -> TensorType:
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


def _concat(attributes: Attributes, use: Use) -> Tensor:
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


register_move(
    "ragged_concat",
    _infer_concat,
    _concat,
    inputs=(3, None),
    passes=1,
    axis=REQUIRED,
    ends=REQUIRED,
    dynamic=True,
)
