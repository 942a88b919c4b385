"""Under which conditions statements are of use, where sizes are dynamic."""

from __future__ import annotations

from typing import TypeAlias

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Binary, Const, Expr
from tunefarm.compiler.loops.demand_analysis import DemandAnalysis
from tunefarm.compiler.loops.ir import Allocate, Body, For, If, Let, Stmt
from tunefarm.compiler.loops.size_conditions import (
    Condition,
    Key,
    shared,
    size_conditions,
    strongest,
)

Facts: TypeAlias = dict[Key, Condition]


class NeededStatements:
    """What the statements of a nest are needed for: its writes, and all that is around them."""

    def __init__(self, writes: DemandAnalysis) -> None:
        self.writes = writes
        self._needs: dict[int, tuple[Stmt, Facts]] = {}  # kept, so that no other gets its identity

    def of(self, statement: Stmt) -> Facts:
        """Conditions over what is bound outside of a statement, without which it is of no use."""
        if id(statement) not in self._needs:
            self._needs[id(statement)] = statement, self._find(statement)
        return self._needs[id(statement)][1]

    def of_body(self, body: Body) -> Facts:
        """The conditions without which no statement of a body is of any use."""
        facts = self.of(body[0])
        for statement in body[1:]:
            facts = shared(facts, self.of(statement))
        return facts

    def _find(self, statement: Stmt) -> Facts:
        match statement:
            case For(variable=variable, start=start, stop=stop, body=body):
                rounds = {variable: (start, stop - 1)}
                return strongest(item.weakest(rounds) for item in self.of_body(body).values())
            case Let(body=body):
                inner = (outside_of(statement, item) for item in self.of_body(body).values())
                return strongest(item for item in inner if item is not None)
            case If(condition=condition, body=body):
                own = size_conditions(condition, {})
                return strongest([*self.of_body(body).values(), *own])
            case Allocate(body=body):
                return self.of_body(body)
        return strongest(self.writes.conditions(statement))


def outside_of(let: Let, condition: Condition) -> Condition | None:
    """A condition without the variable that a binding makes: one that the other implies.

    A shifted tile is of use where it would be if it was not: what it has before is in others. It
    begins before that, so what it needs a begin for holds there as well.
    """
    factor = condition.coefficient(let.variable)
    if not factor:
        return condition
    rest = condition.at(let.variable, 0)
    value: Expr = let.value
    if isinstance(value, Binary) and value.op == "min" and isinstance(value.right, Const):
        if factor > 0 and rest.constant:
            return None
        value = value.left
    return rest.with_form(rest.form.plus(affine(value, {}), factor))


def holds(condition: Condition, known: Facts) -> bool:
    """Whether a condition is among what is known, or implied by it."""
    best = known.get(condition.key)
    return best is not None and best.implies(condition)
