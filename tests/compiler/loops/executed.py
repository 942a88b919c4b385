"""How many statements a loop nest executes at given sizes, without running it on any data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.loops.interpret import value_of
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    For,
    If,
    Let,
    LoopNest,
    Stmt,
    TileDot,
    walk,
    with_body,
)
from tunefarm.compiler.types.tensor_type import Array


def executed(nest: LoopNest, sizes: Mapping[str, Array]) -> int:
    """Stores, updates and products of a run; `sizes` are the inputs that loops end at."""
    return _Counter(sizes).count(nest.body, {})


def only(nest: LoopNest, is_kept: Callable[[Stmt], bool]) -> LoopNest:
    """The nest with the statements without a body that are kept."""

    def kept(body: Body) -> Body:
        made: list[Stmt] = []
        for statement in body:
            if isinstance(statement, For | Let | If | Allocate):
                made.append(with_body(statement, kept(statement.body)))
            elif is_kept(statement):
                made.append(statement)
        return tuple(made)

    return replace(nest, body=kept(nest.body))


def tile_products(nest: LoopNest) -> LoopNest:
    """The nest with its products of matrix tiles alone."""
    return only(nest, lambda statement: isinstance(statement, TileDot))


class _Counter:
    def __init__(self, sizes: Mapping[str, Array]) -> None:
        self._sizes = sizes

    def count(self, body: Body, env: dict[str, int]) -> int:
        total = 0
        for statement in body:
            match statement:
                case For():
                    total += self._rounds(statement, env)
                case Let(variable=variable, value=value, body=inner):
                    total += self.count(inner, {**env, variable: self._number(value, env)})
                case If(condition=condition, body=inner, elsewhere=elsewhere):
                    if elsewhere or self._number(condition, env):
                        total += self.count(inner, env)
                case Allocate(body=inner):
                    total += self.count(inner, env)
                case _:
                    total += 1
        return total

    def _rounds(self, loop: For, env: dict[str, int]) -> int:
        start, stop = loop.start, loop.stop
        if loop.limit is not None:
            stop = min(stop, self._number(loop.limit, env))
        if loop.begins is not None:
            start = max(start, self._number(loop.begins, env))
        if stop <= start:
            return 0
        if not _decides(loop.variable, loop.body):
            return (stop - start) * self.count(loop.body, {**env, loop.variable: start})
        return sum(self.count(loop.body, {**env, loop.variable: n}) for n in range(start, stop))

    def _number(self, expr: Expr, env: dict[str, int]) -> int:
        return int(value_of(expr, self._sizes, env))


def _decides(variable: str, body: Body) -> bool:
    """Whether what is executed depends on a variable."""
    for statement in walk(body):
        read: list[Expr | None] = []
        if isinstance(statement, For):
            read = [statement.limit, statement.begins]
        elif isinstance(statement, Let):
            read = [statement.value]
        elif isinstance(statement, If):
            read = [statement.condition]
        if any(expr is not None and variable in axes_of(expr) for expr in read):
            return True
    return False
