"""One axis of data at another number of positions: what resizing is made of, axis by axis.

Each position takes one element along the axis, or the weighted sum of a few. Where they lie follows
from the position by a division (twice as many: position // 2), or is read from a table.
"""

from __future__ import annotations

from functools import reduce

from tunefarm.compiler.expr.nodes import Expr, add, binary, cast, integer, mul
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.blocked import BLOCKED, BlockedForm, BlockedRule, BlockedUse
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    Positions,
    define,
)
from tunefarm.compiler.operators.rules import INDICES, check, check_dtype, check_same_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dtypes import FLOATS, DType
from tunefarm.compiler.types.padded_shape import whole
from tunefarm.compiler.types.tensor_type import TensorType


def _infer_resample(attributes: Attributes, types: Types) -> TensorType:
    data = types.present(0)
    axis, size = attributes.axis("axis", len(data.shape)), attributes.integer("size")
    offsets = attributes.integers("offsets")
    step, divisor = attributes.integer("step"), attributes.integer("divisor")
    check(bool(offsets), "offsets need one entry for each element of a sum")
    check(step >= 1 and divisor >= 1, f"step {step} and divisor {divisor} must be at least 1")
    tabled, weighted = attributes.flag("tabled"), attributes.flag("weighted")
    tables = tabled + weighted
    check(len(types) == 1 + tables, f"{tables} tables are needed, not {len(types) - 1}")
    check(weighted or len(offsets) == 1, f"{len(offsets)} elements are summed without weights")
    for position in range(1, len(types)):
        table = types.present(position)
        wanted = (len(offsets), size)
        check(table.shape == wanted, f"a table must have the shape {list(wanted)}, not {table}")
    if tabled:
        check_dtype(types.present(1), INDICES, "the table of positions")
    if weighted:
        check_dtype(data, FLOATS)
        check_same_dtype(data, types.present(len(types) - 1))
    types.require_whole(0, axis, "the axis that is resized")
    return TensorType.of(data.dtype, (*data.dims[:axis], whole(size), *data.dims[axis + 1 :]))


def _resample(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)
    axis = attributes.axis("axis", len(data.shape))
    step, divisor = attributes.integer("step"), attributes.integer("divisor")
    tabled, weighted = attributes.flag("tabled"), attributes.flag("weighted")
    last = integer(data.shape[axis] - 1)

    def element(tap: int, offset: int, indices: tuple[Expr, ...]) -> Expr:
        here = indices[axis]
        if tabled:
            position = cast(DType.I64, use.input(1)[integer(tap), here])
        else:
            moved = add(mul(here, integer(step)), integer(offset))
            position = binary("floordiv", moved, integer(divisor))
        position = binary("max", binary("min", position, last), integer(0))
        found = data[(*indices[:axis], position, *indices[axis + 1 :])]
        if not weighted:
            return found
        return mul(found, use.input(1 + tabled)[integer(tap), here])

    def value(indices: tuple[Expr, ...]) -> Expr:
        offsets = attributes.integers("offsets")
        return reduce(add, (element(tap, at, indices) for tap, at in enumerate(offsets)))

    return use.pointwise("resample", value)


def _blocked_resample(use: BlockedUse) -> BlockedForm | None:
    """Rows and columns of blocks; lanes that pad channels keep their number, or their zero."""
    data, lane = use.types.present(0), use.lanes[0]
    if len(data.shape) != 4 or use.attributes.integer("axis") < 2 or lane is None:
        return None
    if use.attributes.flag("weighted") and lane and not use.is_whole(data):
        return None
    return BlockedForm(BLOCKED, lane)


def _positions(attributes: Attributes) -> Positions:
    several = attributes.flag("tabled") or attributes.flag("weighted")
    return Positions.LOOKED_UP if several else Positions.DIVIDED


define(
    "resample",
    Pattern.INJECTIVE,
    (1, 3),
    _infer_resample,
    _resample,
    {
        "axis": REQUIRED,
        "size": REQUIRED,
        "step": 1,
        "divisor": 1,
        "offsets": (0,),
        "tabled": False,
        "weighted": False,
    },
    cheap=True,
    positions=_positions,
    moves=lambda attributes: not attributes.flag("weighted"),
    blocked=BlockedRule(_blocked_resample),
    dynamic=True,
)
