"""Rows in their trees: a step from each node to one of its children, or all nodes at once.

A walk takes `tree_step` as often as the trees are deep. `tree_leaves` asks every node of a tree: a
node that sends a row to one side rules out the leaves of the other, and what all nodes leave is one
leaf. Leaves are bits of an integer, as in QuickScorer (Lucchese et al., SIGIR 2015); both answers
rule leaves out, so that a tree of more leaves than bits is several of them, each with the nodes
that part its leaves or lie above, and only one of them keeps a bit.

Results lie [trees, rows] or, `by_rows`, [rows, trees], where few rows of many trees are to cost
little.
"""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
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
    Pattern,
    Positions,
    define,
)
from tunefarm.compiler.operators.rules import check, check_dtype, check_same_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import BOOLS, WIDE_FLOATS, DType
from tunefarm.compiler.types.padded_shape import whole
from tunefarm.compiler.types.tensor_type import TensorType


def slots_of(masks: DType) -> int:
    """Numbers of leaves of a tree, a bit of a mask each, behind what a row has at none of them."""
    return masks.bits + 1


def _infer_step(attributes: Attributes, types: Types) -> TensorType:
    """Of rows that are not there any node will do: the tables clamp what they are read at."""
    nodes, data, features, thresholds, children = (types.present(n) for n in range(5))
    for table in (nodes, features, children):
        check_dtype(table, frozenset((DType.I32,)), "a table of nodes")
    check_dtype(data, WIDE_FLOATS, "the data")
    check_same_dtype(data, thresholds)
    count = features.shape[0] if features.shape else 0
    check(len(data.shape) == 2, f"the data {data} is not [rows, features]")
    check(count < 2**30, f"{count} nodes are too many")
    check(
        features.shape == thresholds.shape == (count,) and children.shape == (2 * count,),
        f"tables {features}, {thresholds} and {children} are not of the same nodes",
    )
    special = types.optional(5)
    if special is not None:
        check_dtype(special, BOOLS, "the table of NaNs")
        check(special.shape == (count,), f"{special} is not one entry per node")
    for position in types.positions()[2:]:
        types.require_whole(position, 0, "a table of nodes")
    types.require_whole(1, 1, "the axis of features")
    by_rows = attributes.flag("by_rows")
    mismatch = f"the nodes {nodes} are not one for each of the trees and rows of {data}"
    check(len(nodes.shape) == 2, mismatch)
    rows = types.stretched((0, 1 - by_rows), (1, 0), otherwise=mismatch)
    trees = nodes.dims[by_rows]
    return TensorType.of(DType.I32, (rows, trees) if by_rows else (trees, rows))


def _step(attributes: Attributes, use: Use) -> Tensor:
    nodes, data, features, thresholds, children = (use.input(n) for n in range(5))
    special = use.optional(5)
    count, width = features.shape[0], data.shape[1]
    row_axis = 1 - int(attributes.flag("by_rows"))

    def child(indices: tuple[Expr, ...]) -> Expr:
        at = list(indices)
        if nodes.shape[row_axis] == 1:
            at[row_axis] = integer(0)
        number = _clamped(nodes[tuple(at)], count)
        node = cast(DType.I64, number)
        value = data[indices[row_axis], cast(DType.I64, _clamped(features[node], width))]
        first = binary("le", value, thresholds[node])
        if special is not None:
            first = binary("or", first, binary("and", unary("isnan", value), special[node]))
        side = select(first, const(0, DType.I32), const(1, DType.I32))
        chosen = add(mul(number, const(2, DType.I32)), side)
        return children[(cast(DType.I64, chosen),)]

    return use.pointwise("tree_step", child)


def _infer_leaves(attributes: Attributes, types: Types) -> TensorType:
    data, features, thresholds, *masks, leaves = (types.present(n) for n in range(6))
    by_rows = attributes.flag("by_rows")
    for table in (features, leaves):
        check_dtype(table, frozenset((DType.I32,)), "a table of trees")
    check_dtype(masks[0], frozenset((DType.I32, DType.I64)), "a table of masks")
    check_same_dtype(*masks)
    check_dtype(data, WIDE_FLOATS, "the data")
    check_same_dtype(data, thresholds)
    tables = [features, thresholds, *masks]
    special = types.optional(6)
    if special is not None:
        check_dtype(special, BOOLS, "the table of NaNs")
        tables.append(special)
    shape = features.shape
    check(
        len(data.shape) == len(shape) == 2 and all(table.shape == shape for table in tables),
        f"tables {', '.join(map(str, tables))} for {data} are not of the same nodes",
    )
    trees = shape[1 if by_rows else 0]
    slots = slots_of(masks[0].dtype)
    check(leaves.shape == (trees * slots,), f"{leaves} is not {slots} leaves for {trees} trees")
    types.require_whole(0, int(by_rows), "the axis of features")
    for position in types.positions()[1:]:
        types.require_all_whole(position, "a table of nodes")
    rows = data.dims[1 - by_rows]
    dims = (rows, whole(trees)) if by_rows else (whole(trees), rows)
    return TensorType.of(DType.I32, dims)


def _leaves(attributes: Attributes, use: Use) -> Tensor:
    data, features, thresholds, first, second, leaves = (use.input(n) for n in range(6))
    special = use.optional(6)
    by_rows = attributes.flag("by_rows")
    tree_axis = int(by_rows)
    width = data.shape[tree_axis]

    def kept(*indices: Expr) -> Expr:
        """The leaves that a node leaves a row."""
        *output, node = indices
        tree, row = output[tree_axis], output[1 - tree_axis]
        at = (node, tree) if by_rows else (tree, node)
        feature = cast(DType.I64, _clamped(features[at], width))
        value = data[(row, feature) if by_rows else (feature, row)]
        goes_first = binary("le", value, thresholds[at])
        if special is not None:
            missing = binary("and", unary("isnan", value), special[at])
            goes_first = binary("or", goes_first, missing)
        return select(goes_first, first[at], second[at])

    bits = use.builder.stage(
        "tree_bits",
        axes_of(use.shape),
        kept,
        reduce=axes_of([features.shape[1 - tree_axis]], "r"),
        combiner="and",
    )

    def leaf(indices: tuple[Expr, ...]) -> Expr:
        # A power of two as a float has the number of its bit as exponent, 127 more (as a double
        # 1023); zero has 0.
        kind, real, mantissa, most = "bits", DType.F32, 23, 255
        if first.dtype is DType.I64:
            kind, real, mantissa, most = "bits64", DType.F64, 52, 2047
        power = unary(kind, cast(real, bits[indices]))
        exponent = binary("shr", power, const(mantissa, first.dtype))
        exponent = binary("and", exponent, const(most, first.dtype))
        slot = sub(cast(DType.I32, exponent), const(most // 2 - 1, DType.I32))
        slots = slots_of(first.dtype)
        at = add(mul(indices[tree_axis], integer(slots)), cast(DType.I64, _clamped(slot, slots)))
        return leaves[(at,)]

    return use.pointwise("tree_leaves", leaf)


def _clamped(number: Expr, extent: int) -> Expr:
    """A number that was read as a position of 0..extent-1, whatever it is."""
    inside = binary("min", number, const(extent - 1, DType.I32))
    return binary("max", inside, const(0, DType.I32))


define(
    "tree_step",
    Pattern.INJECTIVE,
    (5, 6),
    _infer_step,
    _step,
    {"by_rows": False},
    positions=Positions.LOOKED_UP,
    moves=False,
    alone=True,
    dynamic=True,
)
"""`tree_step(nodes, data, features, thresholds, children, nan_first)`: at node m a row of the data
[rows, features] goes to children[2 m] if its feature is at most the threshold (or NaN, where
`nan_first` says so), else to children[2 m + 1]. A leaf's children are itself.
"""
define(
    "tree_leaves",
    Pattern.OPAQUE,
    (6, 7),
    _infer_leaves,
    _leaves,
    {"by_rows": False},
    alone=True,
    dynamic=True,
)
"""`tree_leaves(data, features, thresholds, first, second, leaves, nan_first)`: node n of tree t
keeps the leaves `first[t, n]` for rows whose feature is at most the threshold (or NaN, where
`nan_first` says so), else `second[t, n]`. With masks of 32 bits (or 64: 65 t) the result is
`leaves[33 t + 1 + k]` of the leaf k that all nodes keep, and `leaves[33 t]` where they keep none.
They must not keep several. Tables lie [trees, nodes] for data [features, rows], or `by_rows` all of
it the other way round.
"""
