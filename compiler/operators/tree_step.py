"""One step of rows down their trees: from each node to one of its children.

Nodes lie [trees, rows], or [rows, trees] where few rows of many trees are to cost little.
"""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.expr.nodes import Expr, add, binary, cast, const, integer, mul, select, unary
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import OperatorDefinition, Pattern, Positions, register
from tunefarm.compiler.operators.rules import check, check_dtype, check_same_dtype
from tunefarm.compiler.operators.use import Attributes, Types, Use
from tunefarm.compiler.types.dtypes import BOOLS, WIDE_FLOATS, DType
from tunefarm.compiler.types.tensor_type import TensorType


def _infer(attributes: Attributes, types: Types) -> TensorType:
    nodes, data = _checked(types)
    check(
        len(nodes.shape) == 2 and nodes.shape[1] in (1, data.shape[0]),
        f"the nodes {nodes} are not [trees, rows] for {data}",
    )
    return TensorType(DType.I32, (nodes.shape[0], data.shape[0]))


def _infer_by_rows(attributes: Attributes, types: Types) -> TensorType:
    nodes, data = _checked(types)
    check(
        len(nodes.shape) == 2 and nodes.shape[0] in (1, data.shape[0]),
        f"the nodes {nodes} are not [rows, trees] for {data}",
    )
    return TensorType(DType.I32, (data.shape[0], nodes.shape[1]))


def _checked(types: Types) -> tuple[TensorType, TensorType]:
    """The nodes and the data, with tables that fit."""
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
    return nodes, data


def _tree_step(attributes: Attributes, use: Use) -> Tensor:
    nodes = use.input(0)

    def number(indices: tuple[Expr, ...]) -> Expr:
        tree, row = indices
        return nodes[tree, row if nodes.shape[1] > 1 else integer(0)]

    return use.pointwise("tree_step", _step(use, number, 1))


def _tree_step_by_rows(attributes: Attributes, use: Use) -> Tensor:
    nodes = use.input(0)

    def number(indices: tuple[Expr, ...]) -> Expr:
        row, tree = indices
        return nodes[row if nodes.shape[0] > 1 else integer(0), tree]

    return use.pointwise("tree_step_by_rows", _step(use, number, 0))


_Indexed = Callable[[tuple[Expr, ...]], Expr]


def _step(use: Use, at: _Indexed, rows: int) -> _Indexed:
    """The child of the node that is `at` indices, of which that number `rows` is the row."""
    data, features, thresholds, children = (use.input(n) for n in range(1, 5))
    special = use.optional(5)
    count, width = features.shape[0], data.shape[1]

    def body(indices: tuple[Expr, ...]) -> Expr:
        number = _inside(at(indices), count)
        node = cast(DType.I64, number)
        value = data[indices[rows], cast(DType.I64, _inside(features[node], width))]
        first = binary("le", value, thresholds[node])
        if special is not None:
            first = binary("or", first, binary("and", unary("isnan", value), special[node]))
        side = select(first, const(0, DType.I32), const(1, DType.I32))
        chosen = add(mul(number, const(2, DType.I32)), side)
        return children[(cast(DType.I64, chosen),)]

    return body


def _inside(number: Expr, extent: int) -> Expr:
    """A number that was read as a position of 0..extent-1, whatever it is."""
    inside = binary("min", number, const(extent - 1, DType.I32))
    return binary("max", inside, const(0, DType.I32))


for _name, _type_rule, _expression in (
    ("tree_step", _infer, _tree_step),
    ("tree_step_by_rows", _infer_by_rows, _tree_step_by_rows),
):
    register(
        OperatorDefinition(
            _name,
            Pattern.INJECTIVE,
            (5, 6),
            _type_rule,
            _expression,
            positions=Positions.LOOKED_UP,
            moves=False,
            alone=True,
        )
    )
"""`tree_step(nodes, data, features, thresholds, children, nan_first)`: at node m a row goes to
children[2 m] if its feature is at most the threshold (or NaN, where `nan_first` says so), else to
children[2 m + 1]. A leaf's children are itself.
"""
