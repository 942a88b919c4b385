"""Pass: rows of a result that are what they were are skipped where it lies over its input.

for row:                                            for row:
  for i: y[row, i] = select(row < n, x[row, i], 0) ->  if not row < n or x is elsewhere:
                                                         for i: y[row, i] = select(row < n, …)

Where the others are so many in a row, they are written on their own, and the rest is not asked for:

for row: for i:                                     if x is elsewhere: for row: for i: …
  y[row, i] = select(0 <= row - first < n,      ->   for new in 0..n: let row = first + new
              new[row - first, i], x[row, i])          if 0 <= row < rows: for i: y[row, i] = …

A step of a decoder so writes its new keys and values into a cache, and reads none of it: it costs
the same whatever the cache has room for.
"""

from __future__ import annotations

from math import prod

from tunefarm.compiler.expr.nodes import (
    Const,
    Expr,
    Load,
    Select,
    add,
    all_of,
    binary,
    index,
    integer,
    mul,
    unary,
)
from tunefarm.compiler.expr.walk import axes_of, substitute
from tunefarm.compiler.kernels.kept_inputs import (
    WrittenRows,
    inputs_kept,
    stored_body,
    written_rows,
)
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.loops.hoist_positions import hoist_positions
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Stmt,
    Store,
    walk,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import replace

_FEWEST = 8
"""Elements that are skipped at once: for fewer, asking is as much work as copying."""


def skip_kept(nest: LoopNest, kernel: FusedKernel) -> LoopNest:
    """The nest, which leaves elements alone that it would write over themselves."""
    if not isinstance(stored_body(kernel), Select):  # most kernels, at each lowering
        return nest
    rows = written_rows(kernel)
    if rows is not None:
        whole = If(Const(DType.BOOL, False), nest.body, rows.kept)
        made = _written(rows, kernel, _lanes(nest.body))
        return hoist_positions(replace(nest, body=(whole, *made)))
    kept = inputs_kept(kernel)
    if len(kept) != 1:
        return nest
    return replace(nest, body=_body(nest.body, kernel.inputs[kept[0]].name, nest.output.name))


def _lanes(body: Body) -> int:
    """Elements of the longest vector; 1 without one."""
    loops = (item for item in walk(body) if isinstance(item, For))
    vectors = (item.stop for item in loops if item.kind is LoopKind.VECTORISED)
    return max(vectors, default=1)


def _written(rows: WrittenRows, kernel: FusedKernel, lanes: int) -> Body:
    """The rows that the result has not from its input, in vectors where whole ones fit."""
    output = kernel.output
    axis = output.axes[rows.axis]
    new, last = f"{axis.name}.new", integer(axis.extent - 1)
    place = add(rows.first, index(new))
    indices = tuple(index(item.name) for item in output.axes)
    inner = list(output.axes[rows.axis + 1 :])
    body: Body = (Store(output.name, indices, rows.value),)
    if inner and lanes > 1 and inner[-1].extent % lanes == 0:
        vector = inner.pop()
        outside, lane = f"{vector.name}.o", f"{vector.name}.i"
        element = {vector.name: add(mul(index(outside), integer(lanes)), index(lane))}
        stored = tuple(substitute(item, element) for item in indices)
        store = Store(output.name, stored, substitute(rows.value, element))
        body = (For(lane, 0, lanes, LoopKind.VECTORISED, (store,)),)
        body = (For(outside, 0, vector.extent // lanes, LoopKind.SERIAL, body),)
    for item in reversed(inner):
        body = (For(item.name, 0, item.extent, LoopKind.SERIAL, body),)
    inside = all_of(binary("ge", place, integer(0)), binary("lt", place, integer(axis.extent)))
    within = binary("max", binary("min", place, last), integer(0))
    body = (Let(axis.name, within, (If(inside, body),)),)
    match rows.count:
        case Const(value=count):
            most, limit = min(int(count), axis.extent), None
        case _:
            most, limit = axis.extent, rows.count
    body = (For(new, 0, most, LoopKind.SERIAL, body, limit=limit),)
    for item in reversed(output.axes[: rows.axis]):
        body = (For(item.name, 0, item.extent, LoopKind.SERIAL, body),)
    return body


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
