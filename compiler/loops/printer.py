"""Loop nests as readable text.

kernel conv_relu(in0: f32[1, 2, 13, 7, 8], in1: f32[3, 2, 3, 3, 8, 8]) -> relu: f32[1, 3, 13, 7, 8]
  for ocb.o in 0..2:
    register conv: f32[1, 2, 1, 6, 8]
    unrolled for ow in 0..6:
      vector for oci in 0..8:
        conv[0, 0, 0, ow, oci] = 0.0
"""

from __future__ import annotations

from collections.abc import Iterator

from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.kernels.printer import format_expression
from tunefarm.compiler.loops.ir import (
    Ahead,
    Allocate,
    Carry,
    Dot,
    For,
    If,
    Let,
    LoopNest,
    Memory,
    Stmt,
    Store,
    TileDot,
    TileLoad,
    TileStmt,
    TileStore,
    TileZero,
    Update,
)


def format_loops(nest: LoopNest) -> str:
    """The whole nest, ending with a newline."""
    inputs = ", ".join(_memory(memory) for memory in nest.inputs)
    lines = [f"kernel {nest.name}({inputs}) -> {_memory(nest.output)}"]
    lines += [f"  prefetch {buffer}, {ahead} elements ahead" for buffer, ahead in nest.prefetches]
    lines.extend(_lines(nest.body, 1))
    return "\n".join(lines) + "\n"


def _memory(memory: Memory) -> str:
    return f"{memory.name}: {memory.dtype}[{', '.join(map(str, memory.shape))}]"


def _lines(body: tuple[Stmt, ...], depth: int) -> Iterator[str]:
    margin = "  " * depth
    for statement in body:
        match statement:
            case For(variable=variable, start=start, stop=stop, kind=kind, body=inner):
                until = statement.limit
                end = stop if until is None else f"min({stop}, {format_expression(until)})"
                begins, shared = statement.begins, statement.worth
                first = start if begins is None else f"max({start}, {format_expression(begins)})"
                where = "" if shared is None else f" where {format_expression(shared)}"
                yield f"{margin}{kind} {variable} in {first}..{end}{where}:"
                yield from _lines(inner, depth + 1)
            case Let(variable=variable, value=value, body=inner):
                yield f"{margin}let {variable} = {format_expression(value)}"
                yield from _lines(inner, depth)
            case If(condition=condition, body=inner, elsewhere=source):
                apart = f" or {source} is elsewhere" if source else ""
                yield f"{margin}if {format_expression(condition)}{apart}:"
                yield from _lines(inner, depth + 1)
            case Allocate(memory=memory, scope=scope, body=inner, ahead=ahead):
                yield f"{margin}{scope} {_memory(memory)}{_ahead(ahead)}"
                yield from _lines(inner, depth)
            case Store(value=value):
                yield f"{margin}{_access(statement)} = {format_expression(value)}"
            case Update():
                yield margin + _update(statement)
            case Dot():
                yield margin + _dot(statement)
            case TileZero() | TileLoad() | TileDot() | TileStore():
                yield margin + _tile(statement)
            case Carry(update=update, exclusive=exclusive):
                when = "before" if exclusive else "after"
                yield f"{margin}{_access(statement)} = {_access(update)} {when} {_update(update)}"


def _update(statement: Update) -> str:
    sign = {"sum": "+=", "prod": "*="}.get(statement.combiner, f"{statement.combiner}=")
    return f"{_access(statement)} {sign} {format_expression(statement.value)}"


def _dot(statement: Dot) -> str:
    left, right = map(format_expression, (statement.left, statement.right))
    over = f"{statement.variable} in 0..{statement.count}"
    form = "widened dot" if statement.widened else "dot"
    return f"{_access(statement)} += {form} over {over} of {left}, {right}"


def _tile(statement: TileStmt) -> str:
    place = _access(statement)
    match statement:
        case TileZero():
            return f"tile {place} = 0"
        case TileDot(left=left, right=right):
            sides = f"{format_expression(left)}, {format_expression(right)}"
            return f"tile {place} += dot of {sides}"
        case TileLoad(source=source, stride=stride) | TileStore(source=source, stride=stride):
            kind = "tile" if isinstance(statement, TileLoad) else "rows"
            rows = "rows" if isinstance(statement, TileLoad) else "tile"
            return f"{kind} {place} = {rows} {format_expression(source)}, {stride} apart"


def _ahead(ahead: Ahead | None) -> str:
    if ahead is None:
        return ""
    return f", prefetch {ahead.distance} elements ahead of {format_expression(ahead.first)}"


def _access(statement: Store | Update | Dot | Carry | TileStmt) -> str:
    return f"{statement.buffer}[{_list(statement.indices)}]"


def _list(indices: tuple[Expr, ...]) -> str:
    return ", ".join(map(format_expression, indices))
