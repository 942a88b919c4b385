"""The loads of a value, and the conditions on sizes under which a select chooses them."""

from __future__ import annotations

from tunefarm.compiler.expr.affine import Ranges
from tunefarm.compiler.expr.nodes import Expr, Load, Select
from tunefarm.compiler.expr.walk import children
from tunefarm.compiler.loops.size_conditions import Condition, size_conditions


def chosen_loads(value: Expr, ranges: Ranges) -> list[tuple[Load, tuple[Condition, ...]]]:
    """The loads of a value, each with the conditions of the selects that it is chosen by."""
    found: list[tuple[Load, tuple[Condition, ...]]] = []
    seen: set[tuple[int, tuple[Condition, ...]]] = set()
    stack: list[tuple[Expr, tuple[Condition, ...]]] = [(value, ())]
    while stack:
        node, path = stack.pop()
        if (id(node), path) in seen:
            continue
        seen.add((id(node), path))
        if isinstance(node, Load):
            found.append((node, path))
        if isinstance(node, Select):
            own = (*path, *size_conditions(node.condition, ranges))
            stack += [(node.condition, path), (node.otherwise, path), (node.then, own)]
        else:
            stack += [(operand, path) for operand in children(node)]
    return found
