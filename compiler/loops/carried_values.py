"""What the rounds of a scan tell of each other: a value is carried from one to the next."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, Load
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.loops.ir import Carry, Dot, Store, Update, values_of
from tunefarm.compiler.loops.size_conditions import Condition


def ends_later_rounds(condition: Condition, carry: Carry) -> bool:
    """Whether no round matters after one beyond a condition: later ones add to what it carries.

    What has a place of its own in what is carried has no rounds after each other.
    """
    held = {name for item in carry.update.indices for name in axes_of(item)}
    return all(factor > 0 or name in held for name, factor in condition.terms)


def values_read(statement: Store | Update | Dot | Carry) -> tuple[Expr, ...]:
    """The expressions that a write evaluates, what a scan carries among them."""
    if isinstance(statement, Carry):
        update = statement.update
        return Load(update.value.dtype, update.buffer, update.indices), update.value
    return values_of(statement)
