"""The loops of a reduction whose sums are in matrix tiles.

tile c = 0                              for each pair of a block of rows and one of lanes
for the rest of the sum:
    tile a = rows of the left factor    for each block of rows
    tile b = rows of the right factor   for each block of lanes
    tile c += dot of a, b               for each pair
rows of the result = tile c             for each pair
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import Affine, affine
from tunefarm.compiler.expr.nodes import Expr, Load, index, integer
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Memory,
    Scope,
    TileDot,
    TileLoad,
    TileStore,
    TileZero,
)
from tunefarm.compiler.loops.leaves import Leaves
from tunefarm.compiler.loops.loop_ranges import Env
from tunefarm.compiler.loops.stage_loops import StageLoops
from tunefarm.compiler.loops.stage_state import StageState, TiledAxes
from tunefarm.compiler.loops.verify_tiles import TERM_BYTES
from tunefarm.compiler.types.frozen import frozen, replace

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""How buffers lie in memory, by name."""


@frozen
class _Factor:
    """Tiles of one factor, the loops over blocks that tell them apart, and what they hold."""

    memory: Memory
    blocks: tuple[str, ...]
    load: Load

    def tile(self, env: Env) -> Load:
        """The tile of the block that the loops are at."""
        return Load(self.memory.dtype, self.memory.name, _places(self.blocks, env))


def tile_loops(loops: StageLoops, leaves: Leaves, held: Memory, shapes: Shapes, env: Env) -> Body:
    """Sum the stage up in tiles and store them to `held`; `env` is at the loops of the sum.

    Raises ScheduleError where factors or result do not lie in memory as tiles need them.
    """
    state, tiled = loops.state, loops.state.tiled
    assert tiled is not None
    of_rows, of_lanes = _factor_loads(state, tiled.rows)
    first = next(i for i, axis in enumerate(state.order) if axis in state.reduce)
    inner = state.order[first : -len(tiled.loops)]
    summed = tuple(axis for axis in inner if axis in state.reduce)
    blocks = tuple(axis for axis in inner if axis not in state.reduce)
    extents = {axis: _extent(state, axis, env) for axis in (*blocks, *tiled.loops)}
    rows, groups, steps, lanes, terms = (extents.get(axis, 1) for axis in tiled)
    made = partial(_factor, state, held.name, {axis: extents[axis] for axis in blocks})
    left = made("left", of_rows, (rows, groups * steps * terms))
    right = made("right", of_lanes, (groups * steps, lanes * terms))
    if terms * left.memory.dtype.bytes != TERM_BYTES:
        raise ScheduleError(f"{terms} terms of {left.memory.dtype} are not {TERM_BYTES} bytes")
    counts = tuple(extents[axis] for axis in blocks)
    sums = Memory(f"{held.name}.sums", held.dtype, (*counts, rows, lanes))
    place = _Placement(loops, leaves, shapes, tiled, extents)

    def zero(env: Env) -> Body:
        return (TileZero(sums.name, _places(blocks, env)),)

    def load(factor: _Factor, rows: str, along: Mapping[str, int], env: Env) -> Body:
        source, stride = place.rows(factor.load, env, rows, along)
        tile = factor.tile(env)
        return (TileLoad(tile.buffer, tile.indices, source, stride),)

    terms_of_left = {tiled.groups: steps * terms, tiled.steps: terms, tiled.terms: 1}
    load_left = partial(load, left, tiled.rows, terms_of_left)
    load_right = partial(load, right, tiled.steps, {tiled.lanes: terms, tiled.terms: 1})

    def dot(env: Env) -> Body:
        return (TileDot(sums.name, _places(blocks, env), left.tile(env), right.tile(env)),)

    def store(env: Env) -> Body:
        target, stride = place.result(held, env)
        tile = Load(held.dtype, sums.name, _places(blocks, env))
        return (TileStore(held.name, target.indices, tile, stride),)

    def step(env: Env) -> Body:
        return (
            *loops.nest(left.blocks, env, load_left, producers=False),
            *loops.nest(right.blocks, env, load_right, producers=False),
            *loops.nest(blocks, env, dot, producers=False),
        )

    body: Body = (
        *loops.nest(blocks, env, zero, producers=False),
        *loops.nest(summed, env, step),
        *loops.nest(blocks, env, store, producers=False),
    )
    for memory in (right.memory, left.memory, sums):
        body = (Allocate(memory, Scope.TILE, body),)
    return body


def _factor_loads(state: StageState, rows: str) -> list[Load]:
    """The loads of both factors, first that of the factor which has the tiles' rows.

    Raises ScheduleError where a factor is more than a load.
    """
    factors = narrow_factors(state.stage.body)
    if factors is None or not all(isinstance(factor, Load) for factor in factors):
        raise ScheduleError(f"the factors of {state.name} are not read as they are")
    loads = [factor for factor in factors if isinstance(factor, Load)]
    return loads if _root(state, rows) in _axes_read(loads[0]) else loads[::-1]


def _axes_read(load: Load) -> set[str]:
    """The axes that a load's place depends on."""
    return {name for item in load.indices for name in axes_of(item)}


def _factor(
    state: StageState,
    sums: str,
    blocks: Mapping[str, int],
    side: str,
    load: Load,
    shape: tuple[int, int],
) -> _Factor:
    """Tiles of `shape` for a factor: one for each of those `blocks`, by extent, that it reads."""
    own = tuple(axis for axis in blocks if _root(state, axis) in _axes_read(load))
    counts = tuple(blocks[axis] for axis in own)
    return _Factor(Memory(f"{sums}.{side}", load.dtype, (*counts, *shape)), own, load)


def _extent(state: StageState, axis: str, env: Env) -> int:
    """Points of a loop, which are as many wherever it runs: tiles have one size."""
    if axis in env.extents:
        return env.extents[axis]
    split = next(each for each in state.splits.values() if axis in (each.outer, each.inner))
    whole = _extent(state, split.parent, env)
    size = split.tile(whole)
    if whole % size and (split.tail != "shift" or split.parent in state.reduce):
        raise ScheduleError(
            f"{size} points of {split.parent} of {state.name} are no part of its {whole}",
            hint="matrix tiles all have one size: tile by a divisor",
        )
    return size if axis == split.inner else -(-whole // size)


def _root(state: StageState, axis: str) -> str:
    root = state.root_of(axis)
    return axis if root is None else root.name


def _places(blocks: tuple[str, ...], env: Env) -> tuple[Expr, ...]:
    """Which block the loops are at."""
    return tuple(env.values[axis] for axis in blocks)


@frozen
class _Placement:
    """Finds where in memory the rows of a tile lie."""

    loops: StageLoops
    leaves: Leaves
    shapes: Shapes
    tiled: TiledAxes
    extents: dict[str, int]

    def rows(self, load: Load, env: Env, rows: str, along: Mapping[str, int]) -> tuple[Load, int]:
        """The first element of a tile of a factor, and how far apart its rows lie.

        A row goes along axes whose points are so many elements apart.
        """
        inside = self._bound(env)
        physical = self.leaves.value(self.loops.placed, load, inside)
        assert isinstance(physical, Load)
        return self._rows(physical, inside, along, rows)

    def result(self, held: Memory, env: Env) -> tuple[Load, int]:
        """The same of a tile of the result."""
        inside = self._bound(env)
        place = self.leaves.place(self.loops.placed, held, inside)
        return self._rows(place, inside, {self.tiled.lanes: 1}, self.tiled.rows)

    def _bound(self, env: Env) -> Env:
        """The tile's own loops have variables; those of blocks that do not matter are at 0."""
        names = {axis: f"{axis}?" for axis in self.tiled.loops}
        free = {axis: integer(0) for axis in self.loops.state.order if axis not in env.values} | {
            axis: index(name) for axis, name in names.items()
        }
        ranges = {name: (0, self.extents[axis] - 1) for axis, name in names.items()}
        state = self.loops.state
        inner = (split.inner for split in state.splits.values())
        extents = {axis: _extent(state, axis, env) for axis in inner}
        return replace(
            env,
            values={**free, **env.values},
            ranges={**env.ranges, **ranges},
            extents={**extents, **env.extents},
        )

    def _rows(
        self, element: Load, env: Env, along: Mapping[str, int], rows: str
    ) -> tuple[Load, int]:
        shape, flat, size = self.shapes[element.buffer], Affine(0, ()), 1
        for item, extent in zip(reversed(element.indices), reversed(shape), strict=True):
            flat = flat.plus(affine(item, env.ranges), size)
            size *= extent
        named = {f"{axis}?" for axis in self.tiled.loops}
        if any(axes_of(atom) & named for atom, _ in flat.terms if not isinstance(atom, str)):
            raise ScheduleError(f"the rows of tiles of {element.buffer} are no even distance apart")
        found = {axis: flat.coefficient(f"{axis}?") for axis in self.tiled.loops}
        stride, columns = (
            found[rows],
            max(n * self.extents.get(axis, 1) for axis, n in along.items()),
        )
        wanted = {axis: along.get(axis, 0) for axis in self.tiled.loops if axis != rows}
        if rows == self.tiled.steps and self.tiled.groups:  # of the right factor: rows, too
            if self.extents[rows] == 1:
                stride = found[self.tiled.groups]
            wanted[self.tiled.groups] = stride * self.extents[rows]
        if any(found[axis] != n for axis, n in wanted.items() if self.extents[axis] > 1):
            raise ScheduleError(
                f"the rows of tiles of {element.buffer} are not contiguous: {found}",
                hint="pack the constant, or tile along other axes",
            )
        begin = {**env.ranges, **dict.fromkeys(named, (0, 0))}
        indices = tuple(affine(item, begin).to_expr() for item in element.indices)
        # Rows of windows may overlap; a single row is nowhere apart from another.
        apart = stride if self.extents[rows] > 1 else max(stride, columns)
        return Load(element.dtype, element.buffer, indices), apart
