"""Walking and rewriting expressions that share nodes: each node object is visited once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from compiler.expr.nodes import Binary, Cast, Const, Expr, Index, Load, Select, Unary


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands, left to right."""
    return _CHILDREN[type(expr)](expr)


_CHILDREN: dict[type[Expr], Callable[[Any], tuple[Expr, ...]]] = {
    Const: lambda expr: (),
    Index: lambda expr: (),
    Load: lambda expr: expr.indices,
    Unary: lambda expr: (expr.operand,),
    Cast: lambda expr: (expr.operand,),
    Binary: lambda expr: (expr.left, expr.right),
    Select: lambda expr: (expr.condition, expr.then, expr.otherwise),
}


def with_children(expr: Expr, operands: tuple[Expr, ...]) -> Expr:
    """`expr` over other operands; the same object when none changed."""
    old = children(expr)
    if len(old) == len(operands) and all(a is b for a, b in zip(old, operands, strict=True)):
        return expr
    match expr:
        case Load():
            return replace(expr, indices=operands)
        case Unary() | Cast():
            return replace(expr, operand=operands[0])
        case Binary():
            return replace(expr, left=operands[0], right=operands[1])
        case Select():
            return replace(expr, condition=operands[0], then=operands[1], otherwise=operands[2])
        case _:
            return expr


def postorder(expr: Expr) -> Iterator[Expr]:
    """Every node object once, operands before their users, without recursion."""
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack.append((node, True))
        stack.extend((operand, False) for operand in reversed(children(node)))


def loads(expr: Expr) -> list[Load]:
    """Every load node once, in evaluation order."""
    return [node for node in postorder(expr) if isinstance(node, Load)]


def rewrite(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """Apply `rule` bottom-up to every node; shared nodes stay shared.

    `rule` gets a node whose operands are rewritten already and returns its replacement.
    """
    done: dict[int, Expr] = {}
    for node in postorder(expr):
        operands = tuple(done[id(operand)] for operand in children(node))
        done[id(node)] = rule(with_children(node, operands))
    return done[id(expr)]
