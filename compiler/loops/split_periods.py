"""Loops in two where a limit begins anew within their range: rows of sentences of a batch.

for i in 0..256:             for i.q in 0..4:
  y[i] = x[i] + 1      ->      for i.r in 0..64:
                                 y[64 i.q + i.r] = x[64 i.q + i.r] + 1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tunefarm.compiler.expr.nodes import Expr, Index, add, index, integer, mul
from tunefarm.compiler.expr.walk import transform
from tunefarm.compiler.kernels.kernel import ValidExtent
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Dot,
    For,
    If,
    Let,
    LoopNest,
    Stmt,
    Store,
    Update,
)


def split_periods(nest: LoopNest, limits: Sequence[ValidExtent]) -> LoopNest:
    """The nest with loops in two where a limit begins anew within their range."""
    periods = sorted({limit.period for limit in limits})
    output = nest.output
    strides: dict[str, int] = {}
    for statement in _stores(nest.body, output.name):
        step = 1
        for extent, item in zip(reversed(output.shape), reversed(statement.indices), strict=True):
            if isinstance(item, Index):
                strides[item.name] = step
            step *= extent
    splits: dict[str, int] = {}
    for name, step in strides.items():
        extent = _extent(nest.body, name)
        for period in periods:
            inside = step < period < step * extent and period % step == 0
            if inside and extent % (period // step) == 0:
                splits.setdefault(name, period // step)
    return replace(nest, body=_split(nest.body, splits)) if splits else nest


def _stores(body: Body, output: str) -> Iterator[Store | Update | Dot]:
    for statement in body:
        if isinstance(statement, For | Let | If | Allocate):
            yield from _stores(statement.body, output)
        elif isinstance(statement, Store | Update | Dot) and statement.buffer == output:
            yield statement


def _extent(body: Body, variable: str) -> int:
    """How far the loops of this name run."""
    found = 0
    for statement in body:
        if isinstance(statement, For) and statement.variable == variable:
            found = max(found, statement.stop)
        if isinstance(statement, For | Let | If | Allocate):
            found = max(found, _extent(statement.body, variable))
    return found


def _split(body: Body, splits: Mapping[str, int]) -> Body:
    """Loops over v as loops over q and r, with q * size + r instead of v."""

    def whole(expr: Expr) -> Expr:
        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Index) and node.name in splits:
                outer = mul(index(f"{node.name}.q"), integer(splits[node.name]))
                return add(outer, index(f"{node.name}.r"))
            return None

        return transform(expr, visit)

    made: list[Stmt] = []
    for statement in body:
        match statement:
            case For(variable=variable, stop=stop, body=inner) if variable in splits:
                size = splits[variable]
                rest = replace(
                    statement, variable=f"{variable}.r", stop=size, body=_split(inner, splits)
                )
                made.append(
                    replace(statement, variable=f"{variable}.q", stop=stop // size, body=(rest,))
                )
            case For(body=inner) | Allocate(body=inner):
                made.append(replace(statement, body=_split(inner, splits)))
            case If(condition=condition, body=inner):
                made.append(
                    replace(statement, condition=whole(condition), body=_split(inner, splits))
                )
            case Let(value=value, body=inner):
                made.append(replace(statement, value=whole(value), body=_split(inner, splits)))
            case Store(indices=indices, value=value) | Update(indices=indices, value=value):
                items = tuple(map(whole, indices))
                made.append(replace(statement, indices=items, value=whole(value)))
            case _:
                made.append(statement)
    return tuple(made)
