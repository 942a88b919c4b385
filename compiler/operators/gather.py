"""Operators that read or write their data at positions taken from an index tensor.

Indices count from the end when negative. ONNX calls other indices an error; a kernel clamps them,
so that no model and no measurement with random inputs can read outside of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.expr.combiners import COMBINERS, neutral_element
from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    all_of,
    binary,
    cast,
    const,
    index,
    integer,
    mul,
    select,
)
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.kernels.scatter import MISSED, NOWHERE, last_write, place_of
from tunefarm.compiler.operators.fill import check_sizes, is_within
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    ExpressionRule,
    OperatorDefinition,
    Pattern,
    Positions,
    Required,
    TypeRule,
    define,
    register,
)
from tunefarm.compiler.operators.rules import (
    INDICES,
    broadcast_load,
    check,
    check_dtype,
    check_same_dtype,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import NUMBERS, DType
from tunefarm.compiler.types.padded_shape import ONE, whole
from tunefarm.compiler.types.tensor_type import Attribute, TensorType


def wrapped(position: Expr, extent: int) -> Expr:
    """A loaded index as an i64: negative ones count from the end, others stay as they are."""
    position = cast(DType.I64, position)
    negative = binary("lt", position, integer(0))
    return select(negative, add(position, integer(extent)), position)


def _position(position: Expr, extent: int) -> Expr:
    """A loaded index as a position in 0..extent-1, whatever its value."""
    inside = binary("min", wrapped(position, extent), integer(extent - 1))
    return binary("max", inside, integer(0))


def _infer_gather(attributes: Attributes, types: Types) -> TensorType:
    """Positions in padding are clamped, by the operator itself, and what they give is padding."""
    data, indices = types.present(0), types.present(1)
    check_dtype(indices, INDICES, "the index tensor")
    axis = attributes.axis("axis", len(data.shape))
    dims = (*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :])
    return TensorType.of(data.dtype, dims)


def _gather(attributes: Attributes, use: Use) -> Tensor:
    data, picks = use.input(0), use.input(1)
    axis = attributes.axis("axis", len(data.shape))
    end = axis + len(picks.shape)

    def value(indices: tuple[Expr, ...]) -> Expr:
        position = _position(picks[indices[axis:end]], data.shape[axis])
        return data[(*indices[:axis], position, *indices[end:])]

    return use.pointwise("gather", value)


def _infer_gather_elements(attributes: Attributes, types: Types) -> TensorType:
    """There may be fewer indices along the other axes than elements, which a run checks."""
    data, indices = types.present(0), types.present(1)
    check_dtype(indices, INDICES, "the index tensor")
    axis = attributes.axis("axis", len(data.shape))
    check(
        len(indices.shape) == len(data.shape),
        f"the data has {len(data.shape)} axes, the index tensor {len(indices.shape)}",
    )
    dims = list(indices.dims)
    for other, (picked, extent) in enumerate(zip(indices.shape, data.shape, strict=True)):
        if other != axis:
            longer = f"axis {other} of the index tensor has the size {picked}, "
            longer += f"that of the data {extent}"
            dims[other] = types.within((1, other), (0, other), longer)
    return TensorType.of(data.dtype, tuple(dims))


def _gather_elements(attributes: Attributes, use: Use) -> Tensor:
    data, picks = use.input(0), use.input(1)
    axis = attributes.axis("axis", len(data.shape))

    def value(indices: tuple[Expr, ...]) -> Expr:
        position = _position(picks[indices], data.shape[axis])
        return data[(*indices[:axis], position, *indices[axis + 1 :])]

    return use.pointwise("gather_elements", value)


def _infer_gather_nd(attributes: Attributes, types: Types) -> TensorType:
    data, indices = types.present(0), types.present(1)
    check_dtype(indices, INDICES, "the index tensor")
    batch = attributes.integer("batch_dims")
    check(len(indices.shape) >= 1, "the index tensor is a scalar")
    check(
        0 <= batch < min(len(data.shape), len(indices.shape)),
        f"batch_dims {batch} is not less than both ranks",
    )
    types.require_whole(1, len(indices.shape) - 1, "an index tuple")
    differ = f"the first {batch} dimensions of the data and of the index tensor differ"
    shared = (types.same((0, axis), (1, axis), otherwise=differ) for axis in range(batch))
    depth = indices.shape[-1]
    check(
        batch + depth <= len(data.shape),
        f"index tuples of {depth} entries after {batch} batch axes, for data of {data}",
    )
    for axis in range(batch, batch + depth):
        types.require_in_one_piece(0, axis, "positions")
    dims = (*shared, *indices.dims[batch:-1], *data.dims[batch + depth :])
    return TensorType.of(data.dtype, dims)


def _gather_nd(attributes: Attributes, use: Use) -> Tensor:
    data, picks = use.input(0), use.input(1)
    batch, depth = attributes.integer("batch_dims"), picks.shape[-1]
    outer = len(picks.shape) - 1

    def value(indices: tuple[Expr, ...]) -> Expr:
        positions = [
            _position(picks[(*indices[:outer], integer(entry))], data.shape[batch + entry])
            for entry in range(depth)
        ]
        return data[(*indices[:batch], *positions, *indices[outer:])]

    return use.pointwise("gather_nd", value)


def _infer_one_hot(attributes: Attributes, types: Types) -> TensorType:
    indices, values = types.present(0), types.present(1)
    check_dtype(indices, NUMBERS, "the index tensor")
    check(values.shape == (2,), f"the values must be [off, on], not {values}")
    axis = attributes.axis("axis", len(indices.shape) + 1)
    depth = attributes.integer("depth")
    return TensorType.of(values.dtype, (*indices.dims[:axis], whole(depth), *indices.dims[axis:]))


def _one_hot(attributes: Attributes, use: Use) -> Tensor:
    picks, values = use.input(0), use.input(1)
    axis = attributes.axis("axis", len(use.shape))
    depth = attributes.integer("depth")

    def value(indices: tuple[Expr, ...]) -> Expr:
        hot = wrapped(picks[(*indices[:axis], *indices[axis + 1 :])], depth)
        return select(binary("eq", hot, indices[axis]), values[integer(1)], values[integer(0)])

    return use.pointwise("one_hot", value)


for _name, _infer, _expression, _attribute in (
    ("gather", _infer_gather, _gather, "axis"),
    ("gather_elements", _infer_gather_elements, _gather_elements, "axis"),
    ("gather_nd", _infer_gather_nd, _gather_nd, "batch_dims"),
):
    define(
        _name,
        Pattern.INJECTIVE,
        2,
        _infer,
        _expression,
        {_attribute: 0},
        positions=Positions.LOOKED_UP,
        dynamic=True,
    )
define(
    "one_hot",
    Pattern.INJECTIVE,
    2,
    _infer_one_hot,
    _one_hot,
    {"depth": REQUIRED, "axis": REQUIRED},
    dynamic=True,
)


# --- Operators that write to positions taken from an index tensor --------------------------------
#
# Indices count from the end when negative; updates of what lies outside are left out. Where
# several updates have one position the last one stays, unless a reduction joins them all with the
# data. The expressions say for each element which updates are its own; see
# `tunefarm.compiler.kernels.scatter`.
#
# With a fourth operand there are only `sizes[number]` updates: those behind are left out as well.


REDUCTIONS = {"none": "", "add": "sum", "mul": "prod", "max": "max", "min": "min"}
"""Combiners by what ONNX calls a reduction."""

_UPDATES = "u"


def _sharing(types: Types, axis: int) -> list[tuple[int, int]]:
    """Where an axis of data and updates is, and of indices, unless one stands for all."""
    operands = (0, 2) if types.axis(1, axis) == ONE else (0, 1, 2)
    return [(operand, axis) for operand in operands]


def _infer_elements(attributes: Attributes, types: Types) -> TensorType:
    """Updates in padding go nowhere: their positions are the lowest number, or are not read.

    One index may stand for all along the other axes.
    """
    data, indices, updates = types.present(0), types.present(1), types.present(2)
    _check_operands(attributes, types)
    check(len(data.shape) == 3, f"the data is {data}, and not [before, axis, behind]")
    mismatch = f"indices {indices} and updates {updates} do not fit {data}"
    check(len(indices.shape) == len(updates.shape) == 3, mismatch)
    types.same((1, 1), (2, 1), otherwise=mismatch)
    if attributes.integer("number") < 0:
        types.fill(1, 1, "lowest")
    before, behind = (types.same(*_sharing(types, axis), otherwise=mismatch) for axis in (0, 2))
    return TensorType.of(data.dtype, (before, data.dims[1], behind))


def _infer_rows(attributes: Attributes, types: Types) -> TensorType:
    data, indices, updates = types.present(0), types.present(1), types.present(2)
    _check_operands(attributes, types)
    named = attributes.integers("named")
    check(len(data.shape) == 2 and prod(named) == data.shape[0], f"{data} has not {named} rows")
    mismatch = f"indices {indices} and updates {updates} do not fit rows {list(named)} of {data}"
    check(indices.shape[1:] == (len(named),) and len(updates.shape) == 2, mismatch)
    types.same((1, 0), (2, 0), otherwise=mismatch)
    if attributes.integer("number") < 0:
        types.fill(1, 0, "lowest")
    behind = types.same((0, 1), (2, 1), otherwise=mismatch)
    return TensorType.of(data.dtype, (data.dims[0], behind))


def _check_operands(attributes: Attributes, types: Types) -> None:
    data, indices, updates = types.present(0), types.present(1), types.present(2)
    check_dtype(indices, INDICES, "the index tensor")
    check_same_dtype(data, updates)
    combiner = REDUCTIONS[attributes.choice("reduction", tuple(REDUCTIONS))]
    if combiner and data.dtype not in COMBINERS[combiner].operands:
        raise ShapeError(f"no reduction of {data.dtype} is known")
    if attributes.integer("number") >= 0:
        check_sizes(attributes, types.present(3), "number")


def _elements(attributes: Attributes, use: Use) -> Tensor:
    data, picks, updates = (use.input(position) for position in range(3))
    before, _, behind = map(index, _names(use))
    count = picks.shape[1]

    def position(u: Expr) -> Expr:
        place = broadcast_load(picks, (before, u, behind), (use.shape[0], count, use.shape[2]))
        return wrapped(place, use.shape[1])

    def value(u: Expr) -> Expr:
        return updates[before, u, behind]

    searched = axes_of(use.shape)
    return _scattered(attributes, use, data, 1, searched, count, position, value)


def _rows(attributes: Attributes, use: Use) -> Tensor:
    data, picks, updates = (use.input(position) for position in range(3))
    named = attributes.integers("named")
    column = index(_names(use)[1])

    def position(u: Expr) -> Expr:
        places = [wrapped(picks[u, integer(entry)], extent) for entry, extent in enumerate(named)]
        return _row(places, named)

    def value(u: Expr) -> Expr:
        return updates[u, column]

    none = attributes["reduction"] == "none"
    searched = axes_of(use.shape)[: 1 if none else 2]
    return _scattered(attributes, use, data, 0, searched, picks.shape[0], position, value)


def _names(use: Use) -> list[str]:
    return [name for name, _ in axes_of(use.shape)]


def _row(places: Sequence[Expr], named: Sequence[int]) -> Expr:
    """The number of the row at these places along the named axes, -1 if there is none."""
    if len(places) == 1:
        return places[0]
    number: Expr = integer(0)
    conditions: list[Expr] = []
    for place, extent in zip(places, named, strict=True):
        number = add(mul(number, integer(extent)), place)
        conditions.append(binary("ge", place, integer(0)))
        conditions.append(binary("lt", place, integer(extent)))
    return select(all_of(*conditions), number, integer(NOWHERE))


def _scattered(
    attributes: Attributes,
    use: Use,
    data: Tensor,
    along: int,
    searched: Sequence[tuple[str, int]],
    count: int,
    position: Callable[[Expr], Expr],
    value: Callable[[Expr], Expr],
) -> Tensor:
    """The data with `count` updates along an axis; `searched` are the axes positions differ on."""
    combiner = REDUCTIONS[attributes.choice("reduction", tuple(REDUCTIONS))]
    names = [name for name, _ in searched]

    number = attributes.integer("number")

    def place(u: Expr) -> Expr:
        if number < 0:
            return position(u)
        return select(is_within(u, use.input(3), number, -1), position(u), integer(NOWHERE))

    def found(*indices: Expr) -> Expr:
        update = indices[-1]
        own = binary("eq", place(update), indices[along])
        if combiner:
            return select(own, value(update), neutral_element(combiner, data.dtype))
        return select(own, cast(DType.I32, update), const(MISSED, DType.I32))

    hits = use.builder.stage(
        "hits", searched, found, reduce=[(_UPDATES, count)], combiner=combiner or "max"
    )

    def element(indices: tuple[Expr, ...]) -> Expr:
        hit, old = hits[tuple(map(index, names))], data[indices]
        if combiner:
            return binary(COMBINERS[combiner].operation, old, hit)
        return last_write(hit, old, value(place_of(hit)))

    return use.pointwise("scatter", element)


def _definition(name: str, infer: TypeRule, expression: ExpressionRule) -> OperatorDefinition:
    attributes: dict[str, Attribute | Required] = {"reduction": "none", "number": -1}
    if infer is _infer_rows:
        attributes["named"] = REQUIRED
    return OperatorDefinition(
        name, Pattern.OPAQUE, (3, 4), infer, expression, attributes, alone=True, dynamic=True
    )


register(
    _definition("scatter_elements", _infer_elements, _elements),
    _definition("scatter_rows", _infer_rows, _rows),
)


# --- lookup --------------------------------------------------------------------------------------
#
# A function of 8 bits as the table of its 256 results: y = table[x], by the bits of x.


BYTES = frozenset((DType.U8, DType.I8))
ENTRIES = 256


def _infer_lookup(attributes: Attributes, types: Types) -> TensorType:
    data, table = types.present(0), types.present(1)
    check_dtype(data, BYTES, "the data")
    check_dtype(table, BYTES, "the table")
    check(table.shape == (ENTRIES,), f"the table {table} has not {ENTRIES} entries")
    return TensorType.of(table.dtype, data.dims)


def _lookup(attributes: Attributes, use: Use) -> Tensor:
    data, table = use.input(0), use.input(1)

    def body(indices: tuple[Expr, ...]) -> Expr:
        return table[(cast(DType.I64, cast(DType.U8, data[indices])),)]

    return use.pointwise("lookup", body)


define(
    "lookup", Pattern.ELEMENTWISE, 2, _infer_lookup, _lookup, cheap=True, looked_up=1, dynamic=True
)
