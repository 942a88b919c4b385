"""One step of rows down their trees: from each node to one of its children."""

from __future__ import annotations

from compiler.expr.nodes import Expr, add, binary, cast, const, integer, mul, select, unary
from compiler.kernels.kernel import Tensor
from compiler.operators.registry import OperatorDefinition, Pattern, Positions, register
from compiler.operators.rules import check, check_dtype, check_same_dtype
from compiler.operators.use import Attributes, Types, Use
from compiler.types.dtypes import BOOLS, WIDE_FLOATS, DType
from compiler.types.tensor_type import TensorType


def _infer(attributes: Attributes, types: Types) -> TensorType:
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
    check(
        len(nodes.shape) == 2 and nodes.shape[1] in (1, data.shape[0]),
        f"the nodes {nodes} are not [trees, rows] for {data}",
    )
    special = types.optional(5)
    if special is not None:
        check_dtype(special, BOOLS, "the table of NaNs")
        check(special.shape == (count,), f"{special} is not one entry per node")
    return TensorType(DType.I32, (nodes.shape[0], data.shape[0]))


def _tree_step(attributes: Attributes, use: Use) -> Tensor:
    nodes, data, features, thresholds, children = (use.input(n) for n in range(5))
    special = use.optional(5)
    count, width = features.shape[0], data.shape[1]

    def body(indices: tuple[Expr, ...]) -> Expr:
        tree, row = indices
        number = _inside(nodes[tree, row if nodes.shape[1] > 1 else integer(0)], count)
        node = cast(DType.I64, number)
        value = data[row, cast(DType.I64, _inside(features[node], width))]
        first = binary("le", value, thresholds[node])
        if special is not None:
            first = binary("or", first, binary("and", unary("isnan", value), special[node]))
        side = select(first, const(0, DType.I32), const(1, DType.I32))
        chosen = add(mul(number, const(2, DType.I32)), side)
        return children[(cast(DType.I64, chosen),)]

    return use.pointwise("tree_step", body)


def _inside(number: Expr, extent: int) -> Expr:
    """A number that was read as a position of 0..extent-1, whatever it is."""
    inside = binary("min", number, const(extent - 1, DType.I32))
    return binary("max", inside, const(0, DType.I32))


register(
    OperatorDefinition(
        "tree_step",
        Pattern.INJECTIVE,
        (5, 6),
        _infer,
        _tree_step,
        positions=Positions.LOOKED_UP,
        moves=False,
        alone=True,
    )
)
"""`tree_step(nodes, data, features, thresholds, children, nan_first)`: at node m a row goes to
children[2 m] if its feature is at most the threshold (or NaN, where `nan_first` says so), else to
children[2 m + 1]. A leaf's children are itself.
"""
