"""Substitution and traversal of scalar expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compiler.expr.nodes import Binary, Const, Expr, Index, Load, Select, binary
from compiler.expr.walk import children, loads, postorder, with_children
from compiler.kernels.stage import Stage
from compiler.types.dtypes import DType


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
    """The node over walked operands; the same object where they are."""
    if isinstance(node, Binary):
        left, right = walk(node.left), walk(node.right)
        same = left is node.left and right is node.right
        return node if same else binary(node.op, left, right)
    if isinstance(node, Const | Index):
        return node
    if isinstance(node, Load):
        return Load(node.dtype, node.buffer, tuple([walk(index) for index in node.indices]))
    return with_children(node, tuple([walk(operand) for operand in children(node)]))


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace axes by expressions."""
    return transform(expr, lambda node: values.get(node.name) if isinstance(node, Index) else None)


def inline(body: Expr, stage: Stage) -> Expr:
    """`body` with what `stage` computes in the place of loads from it."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.buffer != stage.name:
            return None
        indices = [inline(item, stage) for item in node.indices]
        axes = [axis.name for axis in stage.axes]
        return substitute(stage.body, dict(zip(axes, indices, strict=True)))

    return transform(body, visit)


def axes_of(expr: Expr) -> set[str]:
    """The axes that an expression mentions."""
    if isinstance(expr, Index):
        return {expr.name}
    found: set[str] = set()
    seen: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Index):
            found.add(node.name)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.extend(children(node))
    return found


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    if isinstance(condition, Binary) and condition.op == "and":
        return [*conjuncts(condition.left), *conjuncts(condition.right)]
    return [condition]


def parts_without(expr: Expr, axes: set[str]) -> list[Expr]:
    """The largest computed parts of `expr` that depend on data, but on none of `axes`.

    What is evaluated on one side of a select only cannot stand alone and is left out, as is what is
    no more than a load or an index.
    """
    if isinstance(expr, Load | Const | Index):
        return []
    depends = bool(axes_of(expr) & axes) or expr.dtype is DType.BOOL
    if not depends and not any(isinstance(node, Select) for node in postorder(expr)):
        return [expr] if loads(expr) else []
    operands = (expr.condition,) if isinstance(expr, Select) else children(expr)
    found: list[Expr] = []
    for operand in operands:
        found += [part for part in parts_without(operand, axes) if part not in found]
    return found


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
