from __future__ import annotations

from tunefarm.compiler.expr.nodes import (
    Expr,
    Index,
    Load,
    add,
    binary,
    cast,
    const,
    index,
    integer,
    mul,
    select,
    unary,
)
from tunefarm.compiler.expr.walk import (
    children,
    loads,
    postorder,
    rewrite,
    transform,
    with_operands,
)
from tunefarm.compiler.types.dtypes import DType

X = Load(DType.F32, "in0", (index("i"),))


def test_shared_nodes_are_visited_once_operands_first() -> None:
    shared = unary("exp", X)
    body = add(shared, mul(shared, shared))
    order = list(postorder(body))
    assert len(order) == 5
    assert order[-1] is body
    assert [id(node) for node in order].index(id(X)) < [id(node) for node in order].index(
        id(shared)
    )
    assert loads(body) == [X]


def test_rewriting_keeps_sharing_and_untouched_parts() -> None:
    shared = unary("exp", X)
    untouched = unary("neg", const(2, DType.F32))
    body = add(mul(shared, shared), untouched)

    def rename(node: Expr) -> Expr:
        return Load(node.dtype, "in9", node.indices) if isinstance(node, Load) else node

    result = rewrite(body, rename)
    product, kept = children(result)
    assert kept is untouched
    assert children(product)[0] is children(product)[1]
    assert [load.buffer for load in loads(result)] == ["in9"]
    assert rewrite(body, lambda node: node) is body


def test_axes_are_exchanged_where_arithmetic_folds_to_one_of_them() -> None:
    exchanged = {"block": integer(0), "lane": index("block")}
    channel = add(mul(index("block"), integer(16)), index("lane"))

    def exchange(node: Expr) -> Expr:
        return exchanged[node.name] if isinstance(node, Index) else node

    assert rewrite(channel, exchange) == index("block")


def test_other_operands_give_another_node_of_the_same_kind() -> None:
    one, two = const(1, DType.F32), const(2, DType.F32)
    condition = binary("lt", X, one)
    for node in (
        X,
        unary("isnan", X),
        cast(DType.I64, X),
        add(X, one),
        select(condition, X, one),
    ):
        assert with_operands(node, lambda operand: operand) is node
    assert with_operands(one, lambda operand: two) is one
    assert with_operands(X, lambda operand: integer(3)) == Load(X.dtype, "in0", (integer(3),))
    assert with_operands(unary("isnan", X), lambda operand: two) == unary("isnan", two)
    assert with_operands(cast(DType.I64, X), lambda operand: two) == cast(DType.I64, two)
    assert with_operands(add(X, one), lambda operand: two) == add(two, two)
    assert with_operands(
        select(condition, X, one), lambda operand: two if operand is X else operand
    ) == select(condition, two, one)


def test_index_arithmetic_over_other_operands_is_folded() -> None:
    assert with_operands(add(index("i"), index("j")), lambda operand: integer(3)) == integer(6)


def test_transforming_goes_no_further_below_what_is_replaced() -> None:
    shared = unary("exp", X)
    other = Load(DType.F32, "in9", (index("i"),))
    seen: list[Expr] = []

    def visit(node: Expr) -> Expr | None:
        seen.append(node)
        return other if node is shared else None

    assert transform(mul(shared, shared), visit) == mul(other, other)
    assert seen == [mul(shared, shared), shared]


def test_deep_expressions_do_not_exhaust_the_stack() -> None:
    body: Expr = X
    for _ in range(5000):
        body = unary("neg", body)
    assert len(list(postorder(rewrite(body, lambda node: node)))) == 5002
