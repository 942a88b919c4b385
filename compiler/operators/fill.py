"""What lies behind the true size of an axis, replaced by one value.

Models with run-time sizes are padded to their bounds (see `tunefarm.compiler.types.signature`), and
padding may hold anything: who would read it reads it filled, with 0 for a sum, the lowest value for
a maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from tunefarm.compiler.expr.nodes import Expr, all_of, binary, const, integer, select
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.blocked import BLOCKED, BlockedForm, BlockedRule, BlockedUse
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    define,
)
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def _lowest(dtype: DType) -> int | float:
    return dtype.limits[0] if dtype.is_integer else False if dtype is DType.BOOL else -math.inf


def _highest(dtype: DType) -> int | float:
    return dtype.limits[1] if dtype.is_integer else True if dtype is DType.BOOL else math.inf


VALUES: Final[Mapping[str, Callable[[DType], int | float]]] = {
    "zero": lambda dtype: 0,
    "one": lambda dtype: 1,
    "lowest": _lowest,
    "highest": _highest,
}


def check_sizes(attributes: Attributes, sizes: TensorType, name: str) -> None:
    """Check a vector of sizes, and that it has the elements that an operator names."""
    check(sizes.dtype is DType.I64 and len(sizes.shape) == 1, f"{sizes} is no vector of sizes")
    attributes.axis(name, sizes.shape[0])
    since = attributes.integer("since") if "since" in attributes else -1
    check(-1 <= since < sizes.shape[0], f"{sizes} has no such element")


def is_within(place: Expr, sizes: Tensor, number: int, since: int) -> Expr:
    """Whether a place is below one size and, with `since`, not below another one."""
    ends = [binary("lt", place, sizes[(integer(number),)])]
    if since >= 0:
        ends.append(binary("ge", place, sizes[(integer(since),)]))
    return all_of(*ends)


def _infer(attributes: Attributes, types: Types) -> TensorType:
    data, sizes = types.present(0), types.present(1)
    extent = data.shape[attributes.axis("axis", len(data.shape))]
    check_sizes(attributes, sizes, "number")
    attributes.choice("value", tuple(VALUES))
    if (given := types.optional(2)) is not None:
        check(given.dtype is data.dtype and given.size == 1, f"{given} is no value of {data}")
    factor, inner = attributes.integer("extent"), attributes.integer("inner")
    check(
        factor >= 0 and inner >= 1 and extent % ((factor or 1) * inner) == 0,
        f"an axis of {extent} has no factor of {factor} outside of {inner}",
    )
    return data


def _fill(attributes: Attributes, use: Use) -> Tensor:
    data, sizes = use.input(0), use.input(1)
    axis, factor = attributes.integer("axis"), attributes.integer("extent")
    inner = attributes.integer("inner")
    given = use.optional(2)
    value: Expr = const(VALUES[attributes.choice("value", tuple(VALUES))](use.dtype), use.dtype)
    if given is not None:
        value = given[tuple(integer(0) for _ in given.shape)]
    number, since = attributes.integer("number"), attributes.integer("since")

    def body(indices: tuple[Expr, ...]) -> Expr:
        place = indices[axis]
        if inner > 1:
            place = binary("floordiv", place, integer(inner))
        if factor and factor * inner < use.shape[axis]:
            place = binary("mod", place, integer(factor))
        return select(is_within(place, sizes, number, since), data[indices], value)

    return use.pointwise("filled", body)


def _blocked(node: BlockedUse) -> BlockedForm | None:
    """Along other axes than the channels', which keep their places; lanes stay what they are.

    The number in a lane is that of what is there: beyond the size only the largest or smallest of
    what is there is asked for, and it stays that.
    """
    data, lane = node.types.present(0), node.lanes[0]
    if len(data.shape) != 4 or node.attributes["axis"] == 1 or lane is None:
        return None
    if node.is_whole(data):
        return BlockedForm(BLOCKED, 0.0)
    value = node.attributes["value"] if len(node.types) == 2 else "given"
    keeps = value in ("lowest", "highest") or (value == "zero" and lane == 0)
    return BlockedForm(BLOCKED, lane) if keeps else None


define(
    "fill",
    Pattern.ELEMENTWISE,
    (2, 3),
    _infer,
    _fill,
    {"axis": REQUIRED, "number": REQUIRED, "since": -1, "value": "zero", "extent": 0, "inner": 1},
    cheap=True,
    looked_up=1,
    blocked=BlockedRule(_blocked),
    dynamic=True,
)
"""`fill(x, sizes)`: x where the index of `axis` is below `sizes[number]`, and not below
`sizes[since]` unless that is -1; else `value`.

A third operand is one element that stands there instead: the zero point of quantised data.

Where the axis has several factors (rows of sentences of a batch), `extent` and `inner` say which
one is meant: the index is `(i // inner) % extent`; an extent of 0 is all that is left.
"""
