"""Which parallel loops threads share, where sizes are dynamic.

A schedule decides at the bounds. Of a few rows one thread makes more than it takes to wake
another: a loop that ends at run time is shared only where the sizes make it worth that. How often
it runs is no part of that: a loop inside of a recurrence's steps does not grow with their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.expr.nodes import Expr, Load, add, binary, integer, mul
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.kernel import ValidExtent
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Stmt,
    Update,
    walk,
)
from tunefarm.compiler.types.dtypes import DType

MIN_SHARED_PRODUCTS = 1 << 17
"""Products of a loop, summed up, below which a second thread costs more than it saves."""
STORED = 8  # such products to an element that is computed and stored


def parallel_profit(nest: LoopNest, before: LoopNest, limits: Sequence[ValidExtent]) -> LoopNest:
    """The nest, whose parallel loops threads share where they have `MIN_SHARED_PRODUCTS`.

    `before` is the nest without limits, in which loops do what they do at the bounds.
    """
    if not limits or not any(_is_parallel(statement) for statement in walk(nest.body)):
        return nest
    most = {
        loop.variable: _work((loop,))
        for loop in walk(before.body)
        if isinstance(loop, For) and _is_parallel(loop)
    }
    return replace(nest, body=_shared(nest.body, most, _strictest(limits)))


def _strictest(limits: Sequence[ValidExtent]) -> list[ValidExtent]:
    """Of limits that compare the same size along the same places, that of the smallest extent."""
    found: dict[tuple[int, str, int, int], ValidExtent] = {}
    for limit in sorted(limits, key=lambda limit: limit.extent, reverse=True):
        found[limit.stride, limit.sizes, limit.number, limit.offset] = limit
    return [limit for limit in limits if limit in found.values()]


def _is_parallel(statement: Stmt) -> bool:
    return isinstance(statement, For) and statement.kind is LoopKind.PARALLEL


def _work(body: Body) -> int:
    """What a body does at the bounds, in products."""
    total = 0
    for statement in body:
        if isinstance(statement, For):
            total += (statement.stop - statement.start) * _work(statement.body)
        elif isinstance(statement, Let | If | Allocate):
            total += _work(statement.body)
        else:
            total += 1 if isinstance(statement, Update) else STORED
    return total


def _shared(body: Body, most: dict[str, int], limits: Sequence[ValidExtent]) -> Body:
    made: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For) and statement.kind is LoopKind.PARALLEL:
            work = most.get(statement.variable, MIN_SHARED_PRODUCTS)
            statement = replace(statement, worth=_worth(work, limits))
        elif isinstance(statement, For):
            read = loads(statement.limit) if statement.limit is not None else []
            ends = {(load.buffer, load.indices) for load in read}
            inside = [item for item in limits if (item.sizes, _place(item)) not in ends]
            statement = replace(statement, body=_shared(statement.body, most, inside))
        elif isinstance(statement, Let | If | Allocate):
            statement = replace(statement, body=_shared(statement.body, most, limits))
        made.append(statement)
    return tuple(made)


def _place(limit: ValidExtent) -> tuple[Expr, ...]:
    """Where a limit's size is in the input that has it."""
    return (integer(limit.number),)


def _worth(work: int, limits: Sequence[ValidExtent]) -> Expr | None:
    """Whether so much work at the bounds is enough at the sizes; None where it always is."""
    whole = math.prod(limit.extent for limit in limits)
    needed = -(-MIN_SHARED_PRODUCTS * whole // work)
    if needed <= 1:
        return None
    product: Expr = integer(1)
    for limit in limits:
        size = Load(DType.I64, limit.sizes, _place(limit))
        there = binary("min", add(size, integer(limit.offset)), integer(limit.extent))
        product = mul(product, there)
    return binary("le", integer(needed), product)
