"""Rows at the leaves of their trees, without a walk: every node of a tree is asked.

A node that sends a row to one side rules out the leaves of the other: what all nodes leave is one
leaf. Leaves are bits of an integer, as in QuickScorer (Lucchese et al., SIGIR 2015); both answers
rule leaves out, so that a tree of more leaves than bits is several of them, each with the nodes
that part its leaves or lie above, and only one of them keeps a bit.

Tables lie [trees, nodes] and results [trees, rows] for data [features, rows], or all of it the
other way round where few rows of many trees are to cost little.
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
from tunefarm.compiler.operators.registry import OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check, check_dtype, check_same_dtype
from tunefarm.compiler.operators.use import Attributes, Types, Use, axes_of
from tunefarm.compiler.types.dtypes import BOOLS, WIDE_FLOATS, DType
from tunefarm.compiler.types.tensor_type import TensorType

LEAVES = 32
"""Of a tree in the tables, a bit each."""
SLOTS = LEAVES + 1
"""Numbers of leaves of a tree: the first is what a row has that lies at none of them."""


def _infer(attributes: Attributes, types: Types, by_rows: bool) -> TensorType:
    data, features, thresholds, *masks, leaves = (types.present(n) for n in range(6))
    for table in (features, *masks, leaves):
        check_dtype(table, frozenset((DType.I32,)), "a table of trees")
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
    check(leaves.shape == (trees * SLOTS,), f"{leaves} is not {SLOTS} leaves for {trees} trees")
    rows = data.shape[0 if by_rows else 1]
    return TensorType(DType.I32, (rows, trees) if by_rows else (trees, rows))


def _expression(attributes: Attributes, use: Use, by_rows: bool) -> Tensor:
    data, features, thresholds, first, second, leaves = (use.input(n) for n in range(6))
    special = use.optional(6)
    tree_axis = 1 if by_rows else 0
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
        # A power of two as a float has the number of its bit as exponent, 127 more; zero has 0.
        exponent = binary(
            "shr", unary("bits", cast(DType.F32, bits[indices])), const(23, DType.I32)
        )
        exponent = binary("and", exponent, const(255, DType.I32))
        slot = _clamped(sub(exponent, const(126, DType.I32)), SLOTS)
        at = add(mul(indices[tree_axis], integer(SLOTS)), cast(DType.I64, slot))
        return leaves[(at,)]

    return use.pointwise("tree_leaves", leaf)


def _clamped(number: Expr, extent: int) -> Expr:
    """A number that was read as a position of 0..extent-1, whatever it is."""
    inside = binary("min", number, const(extent - 1, DType.I32))
    return binary("max", inside, const(0, DType.I32))


def _definition(name: str, by_rows: bool) -> OperatorDefinition:
    return OperatorDefinition(
        name,
        Pattern.OPAQUE,
        (6, 7),
        lambda attributes, types: _infer(attributes, types, by_rows),
        lambda attributes, use: _expression(attributes, use, by_rows),
        alone=True,
    )


register(_definition("tree_leaves", False), _definition("tree_leaves_by_rows", True))
"""`tree_leaves(data, features, thresholds, first, second, leaves, nan_first)`: node n of tree t
keeps the leaves `first[t, n]` for rows whose feature is at most the threshold (or NaN, where
`nan_first` says so), else `second[t, n]`. The result is `leaves[33 t + 1 + k]` of the leaf k that
all nodes keep, and `leaves[33 t]` where they keep none. They must not keep several.
"""
