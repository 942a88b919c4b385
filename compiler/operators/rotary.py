"""Rotary position embedding: pairs of features are turned by an angle (Su et al., 2104.09864).

    (a, b)  ->  (a cos - b sin, b cos + a sin)

The pairs of the first `width` features are those half a width apart, or neighbours (`interleaved`).
Features behind them stay what they are. Cosines and sines broadcast to the data but for their last
axis, which is as long as `width`, or half as long: one of each pair.
"""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, add, binary, const, integer, mul, select, sub, unary
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    Positions,
    define,
)
from tunefarm.compiler.operators.rules import (
    broadcast_load,
    check,
    check_dtype,
    check_same_dtype,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import TensorType

_Indices = tuple[Expr, ...]


def _infer(attributes: Attributes, types: Types) -> TensorType:
    data, width = types.present(0), attributes.integer("width")
    check_dtype(data, FLOATS)
    attributes.flag("interleaved")
    check(bool(data.shape), f"{data} has no features")
    fits = 0 < width <= data.shape[-1] and width % 2 == 0
    check(fits, f"{width} of {data.shape[-1]} features are no pairs")
    for name, table in (("cosines", types.present(1)), ("sines", types.present(2))):
        check_same_dtype(data, table)
        last = table.shape[-1] if table.shape else 1
        check(last in (width, width // 2), f"the {name} {table} are not those of {width} features")
        mismatch = f"the {name} {table} do not broadcast to {data}"
        types.broadcast_to(0, 1 + (name == "sines"), but=1, otherwise=mismatch)
    same = types.present(1).shape[-1] == types.present(2).shape[-1]
    check(same, "cosines and sines are not those of the same features")
    types.require_whole(0, len(data.shape) - 1, "the features that are turned")
    return TensorType.of(data.dtype, (*types.broadcast(0, 1, 2, but=1), data.dims[-1]))


@frozen
class _Rotation:
    """The parts of the result's expression."""

    use: Use
    width: int

    def table(self, position: int, indices: _Indices) -> Expr:
        tensor = self.use.input(position)
        return broadcast_load(tensor, indices, (*self.use.shape[:-1], tensor.shape[-1]))

    def neighbours(self, indices: _Indices) -> Expr:
        """x cos + (-b, a) sin, the other one of a pair in the same vector as the one."""
        data, two = self.use.input(0), integer(2)
        pair, second = binary("floordiv", indices[-1], two), binary("mod", indices[-1], two)
        other = (*indices[:-1], add(mul(pair, two), sub(integer(1), second)))
        one = const(1.0, self.use.dtype)
        sign = select(binary("eq", second, integer(0)), const(-1.0, self.use.dtype), one)
        whole = self.use.input(1).shape[-1] == self.width
        place = indices if whole else (*indices[:-1], pair)
        turned = mul(mul(sign, data[other]), self.table(2, place))
        return add(mul(data[indices], self.table(1, place)), turned)

    def apart(self, indices: _Indices) -> Expr:
        """x cos + (-b, a) sin with a cosine and a sine for each feature."""
        data, middle = self.use.input(0), integer(self.width // 2)
        ahead = data[(*indices[:-1], add(indices[-1], middle))]
        behind = data[(*indices[:-1], sub(indices[-1], middle))]
        turned = select(binary("lt", indices[-1], middle), unary("neg", ahead), behind)
        return add(mul(data[indices], self.table(1, indices)), mul(turned, self.table(2, indices)))

    def halves(self, indices: _Indices) -> Expr:
        """One half, or the other, with a cosine and a sine for each pair."""
        data, middle = self.use.input(0), integer(self.width // 2)
        ahead = (*indices[:-1], add(indices[-1], middle))
        behind = (*indices[:-1], sub(indices[-1], middle))
        first = sub(
            mul(data[indices], self.table(1, indices)), mul(data[ahead], self.table(2, indices))
        )
        last = add(
            mul(data[indices], self.table(1, behind)), mul(data[behind], self.table(2, behind))
        )
        return select(binary("lt", indices[-1], middle), first, last)


def _rotary(attributes: Attributes, use: Use) -> Tensor:
    turn = _Rotation(use, attributes.integer("width"))
    whole = use.input(1).shape[-1] == turn.width
    form = turn.apart if whole else turn.halves
    if attributes.flag("interleaved"):
        form = turn.neighbours

    def value(indices: _Indices) -> Expr:
        if turn.width == use.shape[-1]:
            return form(indices)
        inside = binary("lt", indices[-1], integer(turn.width))
        return select(inside, form(indices), use.input(0)[indices])

    return use.pointwise("rotary", value)


define(
    "rotary",
    Pattern.INJECTIVE,
    3,
    _infer,
    _rotary,
    {"width": REQUIRED, "interleaved": False},
    cheap=True,
    passes=2,
    positions=lambda attributes: (
        Positions.DIVIDED if attributes["interleaved"] else Positions.PLAIN
    ),
    moves=False,
    piecewise=True,
    dynamic=True,
)
