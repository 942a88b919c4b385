"""Which register tiles of rows are worth smaller ones."""

from __future__ import annotations

import pytest

from tunefarm.compiler.expr.nodes import Load, const, index, integer
from tunefarm.compiler.kernels.kernel import ValidExtent
from tunefarm.compiler.loops.ir import Allocate, For, LoopKind, Memory, Scope, Stmt, Store, Update
from tunefarm.compiler.loops.row_tiles import (
    FEW,
    MIN_LONE_TILE_ROWS,
    Rows,
    is_rare,
    sum_tile,
    tiles_of_rest,
    worth_cutting,
)
from tunefarm.compiler.loops.size_conditions import Condition, greatest_of
from tunefarm.compiler.types.dtypes import DType

HEIGHT, WIDTH = (Load(DType.I64, "in3", (integer(number),)) for number in (4, 5))
GREATEST = greatest_of((ValidExtent(63 * 16, 63, "in3", 4), ValidExtent(16, 64, "in3", 5, 1)))
CUT = Condition((("ow.o", 14),), 0, 1, WIDTH)


def test_the_greatest_sizes_are_those_that_end_the_output() -> None:
    assert GREATEST == {HEIGHT: 63, WIDTH: 63}


@pytest.mark.parametrize(
    ("known", "rare"),
    [
        (Condition((), 60, 1, HEIGHT), True),
        (Condition((), 30, 1, HEIGHT), False),
        (Condition((), 120, 4, HEIGHT), False),
        (Condition((("oh.o", 4),), 60, 1, HEIGHT), False),
        (Condition((), 56, 1, WIDTH), False),  # the tile's own direction
        (Condition((), 60, 1, Load(DType.I64, "in3", (integer(7),))), False),
    ],
)
def test_tiles_in_the_last_rows_of_a_plane_are_rarely_run(known: Condition, rare: bool) -> None:
    assert is_rare({known.key: known}, CUT, GREATEST) is rare


@pytest.mark.parametrize(("place", "worth"), [(0, True), (28, True), (56, False), (104, False)])
def test_few_rows_behind_many_are_computed_whole(place: int, worth: bool) -> None:
    rows = Rows(frozenset({"ow"}), 1, 7)
    assert worth_cutting(Condition((), place, 1, WIDTH), rows) is worth
    assert worth_cutting(Condition((("ow.o", 7),), place, 1, WIDTH), rows)


def test_a_tile_alone_is_cut_where_it_has_many_rows_among_the_first() -> None:
    def cut(factor: int, count: int, place: int) -> bool:
        rows = Rows(frozenset({"ow"}), factor, count)
        return worth_cutting(Condition((), place, 1, WIDTH), rows)

    assert cut(2, 7, FEW * 14 - 1) and not cut(2, 7, FEW * 14)
    assert cut(1, MIN_LONE_TILE_ROWS, 0) and not cut(1, MIN_LONE_TILE_ROWS - 1, 0)


@pytest.mark.parametrize(
    ("count", "rest", "tiles"),
    [(14, 10, (8, 2)), (14, 7, (8,)), (14, 13, (14,)), (6, 3, (4,)), (6, 5, (6,)), (6, 0, ())],
)
def test_a_rest_is_computed_in_smaller_tiles(count: int, rest: int, tiles: tuple[int, ...]) -> None:
    assert tiles_of_rest(count, rest) == tiles


def test_a_tile_of_sums_is_begun_then_added_to_then_read_and_nothing_else() -> None:
    at = (index("i"),)

    def rows(*body: Stmt) -> Stmt:
        return For("i", 0, 4, LoopKind.UNROLLED, body)

    def parts(*body: Stmt, scope: Scope = Scope.REGISTER) -> list[int] | None:
        found = sum_tile(Allocate(Memory("t", DType.F32, (4,)), scope, body))
        return None if found is None else [*map(len, (found.zeros, found.sums, found.ends))]

    zeros = rows(Store("t", at, const(0.0, DType.F32)))
    added = rows(Update("t", at, "sum", Load(DType.F32, "x", at)))
    read = rows(Store("y", at, Load(DType.F32, "t", at)))
    assert parts(zeros, added, added, read) == [1, 2, 1]
    assert parts(zeros, added, read, scope=Scope.STACK) is None
    assert parts(added, zeros, read) is None and parts(zeros, read, added) is None
    assert parts(zeros, added, read, added) is None and parts(zeros, read) is None
    assert parts(zeros, rows(*added.body, *read.body), read) is None  # type: ignore[attr-defined]
