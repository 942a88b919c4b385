"""A cache of states with new ones written into it, from a place of each sequence on."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, all_of, binary, cast, const, integer, select, sub
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import REQUIRED, Pattern, Positions, define
from tunefarm.compiler.operators.rules import INDICES, check, check_dtype, check_same_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def _infer(attributes: Attributes, types: Types) -> TensorType:
    """What comes behind the update in the cache stays; sizes of the axis are operands."""
    cache, update, starts = types.present(0), types.present(1), types.optional(2)
    check_same_dtype(cache, update)
    axis = attributes.axis("axis", len(cache.shape))
    check(not (attributes.flag("circular") and attributes.flag("ends")), "no end of a circle")
    mismatch = f"the update {update} does not fit the cache {cache} along axis {axis}"
    fits = len(update.shape) == len(cache.shape) and update.shape[axis] <= cache.shape[axis]
    check(fits, mismatch)
    dims = list(cache.dims)
    for other in range(len(dims)):
        if other != axis:
            dims[other] = types.same((0, other), (1, other), otherwise=mismatch)
    if types.optional(4) is None:
        types.require_whole(1, axis, "the axis of an update")
    if attributes.flag("circular") and types.optional(3) is None:
        types.require_whole(0, axis, "the axis of a cache that begins again")
    for size in (types.optional(3), types.optional(4)):
        if size is not None:
            check(size == TensorType(DType.I64, ()), f"{size} is no size")
    if starts is not None:
        check(axis > 0, "axis 0 is that of the sequences")
        check_dtype(starts, INDICES, "the places")
        misplaced = f"{starts} is not one place per sequence"
        check(len(starts.shape) == 1, misplaced)
        types.same((0, 0), (2, 0), otherwise=misplaced)
    return TensorType.of(cache.dtype, tuple(dims))


def _cache_update(attributes: Attributes, use: Use) -> Tensor:
    cache, update, starts = use.input(0), use.input(1), use.optional(2)
    axis = attributes.integer("axis")
    last = integer(update.shape[axis] - 1)
    size, count = (
        integer(tensor.shape[axis]) if true is None else true[()]
        for tensor, true in ((cache, use.optional(3)), (update, use.optional(4)))
    )

    use.builder.leaves_rest = attributes.flag("ends")

    def body(indices: tuple[Expr, ...]) -> Expr:
        place = indices[axis]
        if starts is not None:
            place = sub(place, cast(DType.I64, starts[indices[0]]))
            if attributes.flag("circular"):
                place = binary("mod", place, size)
        is_new = all_of(binary("ge", place, integer(0)), binary("lt", place, count))
        within = binary("max", binary("min", place, last), integer(0))
        new, old = update[(*indices[:axis], within, *indices[axis + 1 :])], cache[indices]
        if attributes.flag("ends"):
            old = select(binary("lt", place, integer(0)), old, const(0, use.dtype))
        return select(is_new, new, old)

    return use.pointwise("cache_update", body)


define(
    "cache_update",
    Pattern.INJECTIVE,
    (2, 5),
    _infer,
    _cache_update,
    {"axis": REQUIRED, "circular": False, "ends": False},
    cheap=True,
    positions=Positions.LOOKED_UP,
    dynamic=True,
)
"""`cache_update(cache, update, starts, size, count)`: along `axis` the update from
`starts[sequence]` on (0 without them), else the cache. What lies behind the end is left out, or
begins again (`circular`). Of the axis `size` elements of the cache are there, and `count` of the
update, i64 scalars, where it is not all of them. Where the cache `ends` with the update, 0 comes
behind that, or what lies there if the result is written over the cache.
"""
