"""Data sampled at fractional places: what grid samples, region pools and deformable convolutions
are made of.

A place is a vector of coordinates in elements, one per spatial axis. Around it lie taps: one (the
nearest), two per axis (linear), or four (cubic). `sample_positions` says where they are read,
`sample_weights` how much each counts, and `sample_rows` or `sample_planes` sum them: rows where
the channels of a place lie side by side, planes where the places of a channel do.

Padding says what lies outside of the data: `zeros`; `border`, its nearest element; `reflection`,
which repeats no element on the border if `align` is set; `edge`, the nearest element up to one
element outside of it, and zeros further away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    all_of,
    binary,
    cast,
    const,
    integer,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    OperatorDefinition,
    Pattern,
    Positions,
    Required,
    register,
)
from tunefarm.compiler.operators.rules import INDICES, check, check_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dtypes import FLOATS, WIDE_FLOATS, DType
from tunefarm.compiler.types.padded_shape import Axis, PaddedShape, whole
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Taps along one axis by the mode."""
PADDINGS = ("zeros", "border", "reflection", "edge")
MOST_TAPS = 16
"""Taps that one kernel sums: what is more is added up by several."""
OUTSIDE = -1
"""The position of a tap that is zero."""

_CUBIC = -0.75  # alpha of the cubic convolution (Keys 1981)
_REACH = 3.0  # taps of places further outside are all outside


def _places(types: Types, attributes: Attributes) -> TensorType:
    """The type of the places, [batch, places, axes]; checks what says what they mean."""
    places, extents = types.present(0), attributes.integers("extents")
    check_dtype(places, FLOATS, "the places")
    check(
        len(places.shape) == 3 and places.shape[2] == len(extents) and min(extents) >= 1,
        f"the places {places} are not [batch, places, {len(extents)} axes]",
    )
    attributes.choice("mode", tuple(TAPS))
    attributes.choice("padding", PADDINGS)
    attributes.flag("align")
    types.require_whole(0, 2, "the axis of coordinates")
    return places


def _tapped(places: TensorType, attributes: Attributes) -> PaddedShape:
    taps = TAPS[attributes.choice("mode", tuple(TAPS))] ** places.shape[2]
    return places.dims[0], whole(taps), places.dims[1]


def _infer_positions(attributes: Attributes, types: Types) -> TensorType:
    places = _places(types, attributes)
    rows, batch = attributes.integer("rows"), types.optional(1)
    check(rows >= 0 and rows * (places.shape[0] + 1) < 2**31, "positions are beyond 31 bits")
    if batch is not None:
        check_dtype(batch, INDICES, "the batch")
        mismatch = f"the batch {batch} is not one entry per {places}"
        check(len(batch.shape) == 1, mismatch)
        types.same((0, 0), (1, 0), otherwise=mismatch)
    return TensorType.of(DType.I32, _tapped(places, attributes))


def _infer_weights(attributes: Attributes, types: Types) -> TensorType:
    places = _places(types, attributes)
    return TensorType.of(places.dtype.wide, _tapped(places, attributes))


def _coordinates(
    attributes: Attributes, places: Tensor, indices: tuple[Expr, ...]
) -> list[tuple[Expr, Expr]]:
    """Per axis the coordinate, as padding moved it, and the tap's place: an integer, as a float."""
    batch, tap, place = indices
    taps = TAPS[attributes.choice("mode", tuple(TAPS))]
    extents = attributes.integers("extents")
    found: list[tuple[Expr, Expr]] = []
    for axis, extent in enumerate(extents):
        value = places[batch, place, integer(axis)]
        if taps == 1:
            value = unary("round", value)
        value = _padded(attributes, value, extent)
        inner = taps ** (len(extents) - 1 - axis)
        step = binary("mod", binary("floordiv", tap, integer(inner)), integer(taps))
        first = value if taps == 1 else unary("floor", value)
        behind = cast(value.dtype, sub(step, integer(1 if taps == 4 else 0)))
        found.append((value, first if taps == 1 else add(first, behind)))
    return found


def _padded(attributes: Attributes, value: Expr, extent: int) -> Expr:
    """A coordinate where padding moves it, and not so far outside that integers cannot say it.

    The taps of a cubic one are moved to the border each, as in PyTorch and onnxruntime.
    """
    padding, dtype = attributes.choice("padding", PADDINGS), value.dtype
    half = 0.0 if attributes.flag("align") else 0.5
    low, high = const(-half, dtype), const(extent - 1 + half, dtype)
    if padding == "zeros" or (padding == "border" and attributes["mode"] == "cubic"):
        return _clamped(value, -_REACH, extent - 1 + _REACH)
    if padding == "edge":
        return _clamped(value, 0.0, extent - 1.0)
    if padding == "border":
        moved = _clamped(value, 0.0, extent - 1.0)
    elif extent - 1 + 2 * half == 0:
        return const(0.0, dtype)
    else:
        span = extent - 1 + 2 * half
        turn = binary("mod", sub(value, low), const(2 * span, dtype))
        beyond = sub(const(2 * span, dtype), turn)
        moved = add(low, binary("min", turn, beyond))
    is_inside = all_of(binary("ge", value, low), binary("le", value, high))
    return select(is_inside, value, moved)


def _clamped(value: Expr, low: float, high: float) -> Expr:
    inside = binary("min", value, const(high, value.dtype))
    return binary("max", inside, const(low, value.dtype))


def _positions(attributes: Attributes, use: Use) -> Tensor:
    places, batch = use.input(0), use.optional(1)
    extents, rows = attributes.integers("extents"), attributes.integer("rows")
    padding = attributes.choice("padding", PADDINGS)

    def body(indices: tuple[Expr, ...]) -> Expr:
        number: Expr = _number(0)
        outside: list[Expr] = []
        for axis, (extent, (_, tap)) in enumerate(
            zip(extents, _coordinates(attributes, places, indices), strict=True)
        ):
            position = cast(DType.I32, tap)
            if padding == "zeros":
                outside.append(binary("ge", position, _number(0)))
                outside.append(binary("lt", position, _number(extent)))
            elif padding == "edge":
                given = places[indices[0], indices[2], integer(axis)]
                outside.append(binary("ge", given, const(-1.0, given.dtype)))
                outside.append(binary("le", given, const(float(extent), given.dtype)))
            elif padding == "reflection":
                position = _reflected(position, extent, attributes.flag("align"))
            position = binary("min", position, _number(extent - 1))
            position = binary("max", position, _number(0))
            number = add(mul(number, _number(extent)), position)
        if rows:
            sample = indices[0] if batch is None else batch[indices[0]]
            number = add(number, mul(cast(DType.I32, sample), _number(rows)))
        return select(all_of(*outside), number, _number(OUTSIDE)) if outside else number

    return use.pointwise("sample_positions", body)


def _number(value: int) -> Expr:
    return const(value, DType.I32)


def _reflected(position: Expr, extent: int, align: bool) -> Expr:
    """A tap next to a place inside, mirrored at the border."""
    last = 2 * extent - (2 if align else 1)
    period = last + (0 if align else 1)
    if not period:
        return _number(0)
    turned = binary("mod", position, _number(period))
    return binary("min", turned, sub(_number(last), turned))


def _weights(attributes: Attributes, use: Use) -> Tensor:
    places, cubic = use.input(0), attributes["mode"] == "cubic"

    def body(indices: tuple[Expr, ...]) -> Expr:
        factors = [
            (_cubic if cubic else _linear)(unary("abs", sub(value, tap)))
            for value, tap in _coordinates(attributes, places, indices)
        ]
        return reduce(mul, factors)

    return use.pointwise("sample_weights", body)


def _linear(distance: Expr) -> Expr:
    one = const(1.0, distance.dtype)
    return binary("max", sub(one, distance), const(0.0, distance.dtype))


def _cubic(distance: Expr) -> Expr:
    """The weight of a tap at a distance of at most 2."""

    def number(value: float) -> Expr:
        return const(value, distance.dtype)

    def polynomial(*coefficients: float) -> Expr:
        return reduce(
            lambda value, c: add(mul(value, distance), number(c)),
            coefficients[1:],
            number(coefficients[0]),
        )

    near = polynomial(_CUBIC + 2, -(_CUBIC + 3), 0.0, 1.0)
    far = polynomial(_CUBIC, -5 * _CUBIC, 8 * _CUBIC, -4 * _CUBIC)
    return select(binary("le", distance, number(1.0)), near, far)


# --- sums of taps -------------------------------------------------------------------------------


def _check_tables(attributes: Attributes, types: Types) -> tuple[TensorType, Axis, Axis]:
    """The data, and the axes of batch and places that positions and weights share."""
    data, positions, weights = types.present(0), types.present(1), types.optional(2)
    check_dtype(positions, frozenset((DType.I32,)), "the table of positions")
    check(len(positions.shape) == 3, f"the positions {positions} are not [batch, taps, places]")
    first, count = attributes.integer("first"), attributes.integer("count")
    check(
        first >= 0 and 1 <= count <= MOST_TAPS and first + count <= positions.shape[1],
        f"taps {first}..{first + count - 1} are not among those of {positions}, or too many",
    )
    attributes.flag("guarded")
    attributes.choice("combine", ("sum", "max"))
    if weights is None:
        check(count == 1, f"{count} taps are summed without weights")
    else:
        check_dtype(data, FLOATS)
        check_dtype(weights, WIDE_FLOATS, "the table of weights")
        check(weights.dtype is data.dtype.wide, f"weights {weights} do not fit {data}")
        check(len(weights.shape) == 3, f"weights {weights} for positions {positions}")
    tables = types.positions()[1:]
    for table in tables:
        types.require_whole(table, 1, "the axis of taps")
    batch, _, places = (
        types.same(
            *((table, axis) for table in tables),
            otherwise=f"weights {weights} for positions {positions}",
        )
        for axis in range(3)
    )
    return data, batch, places


def _infer_rows(attributes: Attributes, types: Types) -> TensorType:
    data, batch, places = _check_tables(attributes, types)
    check(len(data.shape) == 2, f"the data {data} is not [rows, channels]")
    return TensorType.of(data.dtype, (batch, places, data.dims[1]))


def _infer_planes(attributes: Attributes, types: Types) -> TensorType:
    data, batch, places = _check_tables(attributes, types)
    positions = types.present(1)
    mismatch = f"the data {data} is not [batch, channels, elements] for positions {positions}"
    check(len(data.shape) == 3, mismatch)
    types.same((0, 0), (1, 0), otherwise=mismatch)
    return TensorType.of(data.dtype, (batch, data.dims[1], places))


def _combined(
    attributes: Attributes,
    use: Use,
    batch: Expr,
    place: Expr,
    extent: int,
    element: Callable[[Expr], Expr],
) -> Expr:
    """The taps of a place joined; `element` is the data at a position 0 <= p < extent."""
    positions, weights = use.input(1), use.optional(2)
    first, count = attributes.integer("first"), attributes.integer("count")
    join = {"sum": "add", "max": "max"}[attributes.choice("combine", ("sum", "max"))]

    def term(tap: int) -> Expr:
        entry = (batch, integer(tap), place)
        found = positions[entry]
        inside = binary("max", binary("min", found, _number(extent - 1)), _number(0))
        value = element(cast(DType.I64, inside))
        if weights is not None:
            value = mul(value, weights[entry])
        if not attributes.flag("guarded"):
            return value
        return select(binary("lt", found, _number(0)), const(0, value.dtype), value)

    terms = [term(tap) for tap in range(first, first + count)]
    return reduce(lambda left, right: binary(join, left, right), terms)


def _rows(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)

    def body(indices: tuple[Expr, ...]) -> Expr:
        batch, place, channel = indices
        return _combined(
            attributes, use, batch, place, data.shape[0], lambda row: data[row, channel]
        )

    return use.pointwise("sample_rows", body)


def _planes(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)

    def body(indices: tuple[Expr, ...]) -> Expr:
        batch, channel, place = indices
        return _combined(
            attributes, use, batch, place, data.shape[2], lambda at: data[batch, channel, at]
        )

    return use.pointwise("sample_planes", body)


def taps_of(mode: str, extents: Sequence[int]) -> int:
    """The taps of a place in data of so many spatial axes."""
    return int(prod(TAPS[mode] for _ in extents))


_TABLES: dict[str, Attribute | Required] = {
    "extents": REQUIRED,
    "mode": REQUIRED,
    "padding": REQUIRED,
    "align": False,
}
_SUMS: dict[str, Attribute | Required] = {
    "first": 0,
    "count": 1,
    "guarded": False,
    "combine": "sum",
}


register(
    OperatorDefinition(
        "sample_positions",
        Pattern.OPAQUE,
        (1, 2),
        _infer_positions,
        _positions,
        {**_TABLES, "rows": 0},
        moves=False,
        alone=True,
        dynamic=True,
    ),
    OperatorDefinition(
        "sample_weights",
        Pattern.OPAQUE,
        1,
        _infer_weights,
        _weights,
        _TABLES,
        moves=False,
        alone=True,
        dynamic=True,
    ),
    *(
        OperatorDefinition(
            name,
            Pattern.INJECTIVE,
            (2, 3),
            infer,
            expression,
            _SUMS,
            positions=Positions.LOOKED_UP,
            moves=False,
            dynamic=True,
        )
        for name, infer, expression in (
            ("sample_rows", _infer_rows, _rows),
            ("sample_planes", _infer_planes, _planes),
        )
    ),
)
