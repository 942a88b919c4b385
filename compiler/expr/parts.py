"""Parts of expressions: of a conjunction, and the largest that depend on some things only."""

from __future__ import annotations

from compiler.expr.nodes import Binary, Const, Expr, Index, Load, Select
from compiler.expr.walk import axes_of, children, loads, postorder
from compiler.types.dtypes import DType


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
