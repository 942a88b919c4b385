from __future__ import annotations

from compiler.expr.nodes import Const, Expr, Load, add, const, index, mul, unary
from compiler.expr.walk import children, loads, postorder, rewrite, with_children
from compiler.types.dtypes import DType

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


def test_other_operands_give_another_node_of_the_same_kind() -> None:
    one, two = const(1, DType.F32), const(2, DType.F32)
    assert with_children(add(X, one), (X, two)) == add(X, two)
    assert with_children(one, ()) is one
    assert isinstance(one, Const)


def test_deep_expressions_do_not_exhaust_the_stack() -> None:
    body: Expr = X
    for _ in range(5000):
        body = unary("neg", body)
    assert len(list(postorder(rewrite(body, lambda node: node)))) == 5002
