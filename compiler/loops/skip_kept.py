"""Pass: rows of a result that are what they were are skipped where it lies over its input.

for row:                                            for row:
  for i: y[row, i] = select(row < n, x[row, i], 0) ->  if not row < n or x is elsewhere:
                                                         for i: y[row, i] = select(row < n, …)

A step of a decoder so writes its new keys and values into a cache, and reads none of it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tunefarm.compiler.expr.nodes import Expr, Load, Select, all_of, unary
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.kept_inputs import inputs_kept
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.loops.ir import Allocate, Body, For, If, Let, LoopNest, Stmt, Store, walk

_FEWEST = 8
"""Elements that are skipped at once: for fewer, asking is as much work as copying."""


def skip_kept(nest: LoopNest, kernel: FusedKernel) -> LoopNest:
    """The nest, which leaves elements alone that it would write over themselves."""
    if not isinstance(kernel.output.body, Select):  # most kernels, at each lowering
        return nest
    kept = inputs_kept(kernel)
    if len(kept) != 1:
        return nest
    return replace(nest, body=_body(nest.body, kernel.inputs[kept[0]].name, nest.output.name))


def _body(body: Body, source: str, output: str) -> Body:
    return tuple(_statement(statement, source, output) for statement in body)


def _statement(statement: Stmt, source: str, output: str) -> Stmt:
    if isinstance(statement, For):
        unchanged = _unchanged(statement, source, output)
        if unchanged is not None:
            return If(unary("not", unchanged), (statement,), source)
    if isinstance(statement, For | If | Let | Allocate):
        return replace(statement, body=_body(statement.body, source, output))
    return statement


def _unchanged(loop: For, source: str, output: str) -> Expr | None:
    """The condition, the same for the whole loop, that it copies elements to themselves."""
    inside = list(walk((loop,)))
    stores = [item for item in inside if isinstance(item, Store) and item.buffer == output]
    loops = [item for item in inside if isinstance(item, For)]
    if not stores or len(stores) + len(loops) != len(inside):
        return None
    if prod(item.stop - item.start for item in loops) < _FEWEST:
        return None
    first, *others = (_conditions(store, source) for store in stores)
    if first is None or any(other != first for other in others):
        return None
    return first if axes_of(first).isdisjoint(item.variable for item in loops) else None


def _conditions(store: Store, source: str) -> Expr | None:
    """When an element is stored that lies where it goes to; None where no condition says so."""
    found = _ways(store.value, Load(store.value.dtype, source, store.indices))
    return all_of(*found[0]) if len(found) == 1 and found[0] else None


def _ways(value: Expr, own: Load) -> list[tuple[Expr, ...]]:
    """The conditions of each way through selections that leads to `own`."""
    if value == own:
        return [()]
    if not isinstance(value, Select):
        return []
    not_chosen = unary("not", value.condition)
    return [
        (condition, *rest)
        for condition, outcome in ((value.condition, value.then), (not_chosen, value.otherwise))
        for rest in _ways(outcome, own)
    ]
