"""Walking and rewriting expressions that share nodes: each node object is visited once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter, is_
from typing import Any, TypeAlias

from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    Unary,
    binary,
)

Operands: TypeAlias = tuple[Expr, ...]


def children(expr: Expr) -> Operands:
    """The direct operands, left to right."""
    return _CHILDREN[type(expr)](expr)


_CHILDREN: dict[type[Expr], Callable[[Any], Operands]] = {
    Const: lambda expr: (),
    Index: lambda expr: (),
    Load: attrgetter("indices"),
    Unary: lambda expr: (expr.operand,),
    Cast: lambda expr: (expr.operand,),
    Binary: attrgetter("left", "right"),
    Select: attrgetter("condition", "then", "otherwise"),
}
_LEAVES = frozenset((Const, Index))


def with_operands(expr: Expr, walk: Callable[[Expr], Expr]) -> Expr:
    """`expr` over what `walk` makes of its operands; the same object where they stay the same.

    Index arithmetic over new operands is folded, as `binary` does.
    """
    # Lowering spends its time here: no structural patterns, the frequent kinds first.
    if isinstance(expr, Binary):
        left, right = walk(expr.left), walk(expr.right)
        same = left is expr.left and right is expr.right
        return expr if same else binary(expr.op, left, right)
    if type(expr) in _LEAVES:
        return expr
    old = children(expr)
    new = tuple([walk(operand) for operand in old])
    if all(map(is_, old, new)):
        return expr
    if isinstance(expr, Load):
        return Load(expr.dtype, expr.buffer, new)
    if isinstance(expr, Unary):
        return Unary(expr.dtype, expr.op, *new)
    return type(expr)(expr.dtype, *new)


def postorder(expr: Expr, operands: Callable[[Expr], Operands] = children) -> Iterator[Expr]:
    """Every node object once, operands before their users, without recursion.

    `operands` may leave out some, and what only they reach.
    """
    seen: set[int] = set()
    stack: list[Any] = [expr]  # in a tuple: a node whose operands are done
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is tuple:
            yield node[0]
        elif id(node) not in seen:
            seen.add(id(node))
            if kind in _LEAVES:
                yield node
            else:
                stack.append((node,))
                stack.extend(operands(node)[::-1])


def loads(expr: Expr) -> list[Load]:
    """Every load node once, in evaluation order."""
    # As `postorder`, but this is asked of whole stages again and again: only loads are put in
    # tuples, since the order of other nodes is not seen.
    found: list[Load] = []
    seen: set[int] = set()
    stack: list[Any] = [expr]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is tuple:
            found.append(node[0])
        elif kind not in _LEAVES and id(node) not in seen:
            seen.add(id(node))
            if kind is Load:
                stack.append((node,))
            stack.extend(_CHILDREN[kind](node)[::-1])
    return found


def axes_of(expr: Expr) -> set[str]:
    """The axes that an expression mentions."""
    found: set[str] = set()
    seen: set[int] = set()
    stack: list[Any] = [expr]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is Index:
            found.add(node.name)
        elif kind is not Const and id(node) not in seen:
            seen.add(id(node))
            stack.extend(_CHILDREN[kind](node))
    return found


def rewrite(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """Apply `rule` bottom up to every node, without recursion; shared nodes stay shared.

    `rule` gets a node whose operands are rewritten already and returns its replacement. Arithmetic
    that folds to an operand stays that: the rule has been applied to it.
    """
    done: dict[int, Expr] = {}
    for node in postorder(expr):
        rebuilt = with_operands(node, lambda operand: done[id(operand)])
        done[id(node)] = rule(rebuilt) if type(rebuilt) is type(node) else rebuilt
    return done[id(expr)]


def transform(expr: Expr, visit: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expr` top down: where `visit` answers with an expression, that replaces the node.

    Shared nodes are rebuilt once and stay shared.
    """
    memo: dict[int, Expr] = {}

    def walk(node: Expr) -> Expr:
        known = memo.get(id(node))
        if known is None:
            known = memo[id(node)] = visit(node) or with_operands(node, walk)
        return known

    return walk(expr)


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace axes by expressions."""
    return transform(expr, lambda node: values.get(node.name) if isinstance(node, Index) else None)
