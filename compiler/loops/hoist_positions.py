"""Pass: positions that are looked up or divided, computed in the loop that decides them.

for i: for j: y[i, j] = x[clamp(t[i]), j]
->
for i: let p = clamp(t[i]): for j: y[i, j] = x[p, j]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tunefarm.compiler.expr.affine import Affine, affine, affine_range, expr_range
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Index, Load, Select
from tunefarm.compiler.expr.walk import axes_of, loads, transform
from tunefarm.compiler.kernels.kernel import DensePitch
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Stmt,
    Store,
    Update,
    values_of,
    walk,
)
from tunefarm.compiler.loops.loop_ranges import RangeMap
from tunefarm.compiler.types.frozen import replace

_PLAIN = ("add", "sub", "mul")


@dataclass(slots=True)
class _Frame:
    """A loop or a binding that surrounds a statement, with what is to be bound inside of it."""

    variable: str
    holds: bool  # whether bindings may stand here: no loop whose rounds are written out
    lets: dict[Expr, str] = field(default_factory=dict)


def hoist_positions(nest: LoopNest) -> LoopNest:
    """The nest with each position of a load that is no sum of variables bound where it is known.

    Positions that depend on a lane, or on an unrolled loop, stay where they are. What a condition
    guards is only moved out of it where its own loads are in range anyway.
    """
    if not any(_reads_elsewhere(item) for item in walk(nest.body)):
        return nest
    shapes = {
        memory.name: memory.shape
        for memory in nest.inputs
        if not isinstance(memory.pitch, DensePitch)  # which may end at any size
    }
    hoister = _Hoister(shapes)
    body = hoister.body(nest.body, (), {}, guarded=False)
    return replace(nest, body=body) if hoister.found else nest


class _Hoister:
    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes  # of what is only read
        self.found = False
        self._names: Iterator[int] = itertools.count(1)

    def body(self, body: Body, frames: tuple[_Frame, ...], ranges: RangeMap, guarded: bool) -> Body:
        return tuple(self._statement(item, frames, ranges, guarded) for item in body)

    def _statement(
        self, statement: Stmt, frames: tuple[_Frame, ...], ranges: RangeMap, guarded: bool
    ) -> Stmt:
        if isinstance(statement, For):
            holds = statement.kind in (LoopKind.SERIAL, LoopKind.PARALLEL)
            frame = _Frame(statement.variable, holds)
            inner = {**ranges, statement.variable: (statement.start, statement.stop - 1)}
            return replace(
                statement, body=self._inside(statement.body, frame, frames, inner, guarded)
            )
        if isinstance(statement, Let):
            frame = _Frame(statement.variable, all(other.holds for other in frames))
            inner = {**ranges, statement.variable: expr_range(statement.value, ranges)}
            return replace(
                statement, body=self._inside(statement.body, frame, frames, inner, guarded)
            )
        if isinstance(statement, If):
            return replace(statement, body=self.body(statement.body, frames, ranges, True))
        if isinstance(statement, Allocate):
            return replace(statement, body=self.body(statement.body, frames, ranges, guarded))
        if isinstance(statement, Store | Update):
            value = self._rewritten(statement.value, frames, ranges, guarded)
            return statement if value is statement.value else replace(statement, value=value)
        if isinstance(statement, Dot):
            inside = (*frames, _Frame(statement.variable, holds=False))
            within = {**ranges, statement.variable: (0, statement.count - 1)}
            left = self._rewritten(statement.left, inside, within, guarded)
            right = self._rewritten(statement.right, inside, within, guarded)
            return replace(statement, left=left, right=right)
        return statement

    def _inside(
        self,
        body: Body,
        frame: _Frame,
        frames: tuple[_Frame, ...],
        ranges: RangeMap,
        guarded: bool,
    ) -> Body:
        result = self.body(body, (*frames, frame), ranges, guarded)
        for value, name in reversed(frame.lets.items()):
            result = (Let(name, value, result),)
        return result

    def _rewritten(
        self, expr: Expr, frames: tuple[_Frame, ...], ranges: RangeMap, guarded: bool
    ) -> Expr:
        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Load):
                if all(map(_is_plain, node.indices)):
                    return node
                items = (self._position(item, frames, ranges, guarded) for item in node.indices)
                return Load(node.dtype, node.buffer, tuple(items))
            if isinstance(node, Select) and not guarded:
                condition = self._rewritten(node.condition, frames, ranges, False)
                then = self._rewritten(node.then, frames, ranges, True)
                otherwise = self._rewritten(node.otherwise, frames, ranges, True)
                return Select(node.dtype, condition, then, otherwise)
            return None

        return transform(expr, visit)

    def _position(
        self, item: Expr, frames: tuple[_Frame, ...], ranges: RangeMap, guarded: bool
    ) -> Expr:
        if _is_plain(item):
            return item
        form = affine(item, ranges)
        terms = tuple(
            (atom if isinstance(atom, str) else self._bound(atom, frames, guarded, ranges), factor)
            for atom, factor in form.terms
        )
        return item if terms == form.terms else Affine(form.constant, terms).to_expr()

    def _bound(
        self, atom: Expr, frames: tuple[_Frame, ...], guarded: bool, ranges: RangeMap
    ) -> Expr | str:
        """The name of the atom's value where it can be bound, else the atom."""
        needed = axes_of(atom)
        depth = max((i for i, frame in enumerate(frames) if frame.variable in needed), default=0)
        if not frames or not all(frame.holds for frame in frames[: depth + 1]):
            return atom
        for load in loads(atom):
            if load.buffer not in self.shapes or (guarded and not self._is_inside(load, ranges)):
                return atom
        frame = frames[depth]
        if atom not in frame.lets:
            frame.lets[atom] = f"at.{next(self._names)}"
            self.found = True
        return frame.lets[atom]

    def _is_inside(self, load: Load, ranges: RangeMap) -> bool:
        for item, extent in zip(load.indices, self.shapes[load.buffer], strict=True):
            low, high = affine_range(affine(item, ranges), ranges)
            if low < 0 or high >= extent:
                return False
        return True


def _reads_elsewhere(statement: Stmt) -> bool:
    """Some position is no sum of variables: most kernels have none, and lowering is to be quick."""
    if not isinstance(statement, Store | Update | Dot):
        return False
    read = (load for value in values_of(statement) for load in loads(value))
    return any(not all(map(_is_plain, load.indices)) for load in read)


def _is_plain(item: Expr) -> bool:
    """A sum of multiples of variables."""
    if isinstance(item, Index | Const):
        return True
    if not isinstance(item, Binary) or item.op not in _PLAIN:
        return False
    return _is_plain(item.left) and _is_plain(item.right)
