"""Substitution and traversal of scalar expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compiler.kernels.expr import Binary, Cast, Const, Expr, Index, Load, Select, Unary, binary
from compiler.kernels.rewrite import children, loads, postorder


def transform(expr: Expr, visit: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expr` top down: where `visit` answers with an expression, that replaces the node.

    Shared nodes are rebuilt once and stay shared.
    """
    memo: dict[int, Expr] = {}

    def walk(node: Expr) -> Expr:
        known = memo.get(id(node))
        if known is None:
            known = memo[id(node)] = visit(node) or _rebuild(node, walk)
        return known

    return walk(expr)


def _rebuild(node: Expr, walk: Callable[[Expr], Expr]) -> Expr:
    match node:
        case Const() | Index():
            return node
        case Load(dtype=dtype, buffer=buffer, indices=indices):
            return Load(dtype, buffer, tuple(walk(index) for index in indices))
        case Unary(dtype=dtype, op=op, operand=operand):
            return Unary(dtype, op, walk(operand))
        case Binary(op=op, left=left, right=right):
            return binary(op, walk(left), walk(right))
        case Select(dtype=dtype, condition=condition, then=then, otherwise=otherwise):
            return Select(dtype, walk(condition), walk(then), walk(otherwise))
        case Cast(dtype=dtype, operand=operand):
            return Cast(dtype, walk(operand))
        case _:
            raise TypeError(f"not an expression: {node!r}")


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace axes by expressions."""
    return transform(expr, lambda node: values.get(node.name) if isinstance(node, Index) else None)


def axes_of(expr: Expr) -> set[str]:
    """The axes that an expression mentions."""
    return {node.name for node in postorder(expr) if isinstance(node, Index)}


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    if isinstance(condition, Binary) and condition.op == "and":
        return [*conjuncts(condition.left), *conjuncts(condition.right)]
    return [condition]


def parts_that_read(expr: Expr, buffer: str) -> list[Expr]:
    """The largest parts of `expr` that load from `buffer` and from nothing else.

    A part on one side of a select is evaluated only where that side is taken, so that it cannot
    stand alone; if there is one, the result is empty.
    """
    read = {load.buffer for load in loads(expr)}
    if buffer not in read:
        return []
    if read == {buffer}:
        return [expr]
    if isinstance(expr, Select) and not any(
        load.buffer == buffer for load in loads(expr.condition)
    ):
        return []
    found: list[Expr] = []
    for operand in children(expr):
        parts = parts_that_read(operand, buffer)
        if not parts and any(load.buffer == buffer for load in loads(operand)):
            return []
        found += parts
    return found
