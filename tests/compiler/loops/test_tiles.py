"""Matrix tiles in loops: what they mean, how they are printed, and what the verifier refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.loops.tile_nests import product_nest
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.expr.nodes import Load, index, integer
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Stmt,
    TileDot,
    TileLoad,
    TileStore,
    TileZero,
)
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.types.dtypes import DType

BYTES = (DType.U8, DType.I8, DType.I32)
FULL = product_nest(16, 16, 16, (2, 2), (2, 2, 1), BYTES)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 16),
    steps=st.integers(1, 16),
    lanes=st.integers(1, 16),
    tiles=st.sampled_from([(1, 1), (2, 2), (1, 3), (3, 1), (2, 1)]),
    loops=st.tuples(*[st.integers(1, 2)] * 3),
    types=st.sampled_from(
        [
            BYTES,
            (DType.I8, DType.U8, DType.I32),
            (DType.I8, DType.I8, DType.I32),
            (DType.I16, DType.I16, DType.I32),
            (DType.BF16, DType.BF16, DType.F32),
        ]
    ),
)
def test_products_of_tiles_are_those_of_matrices(
    rows: int,
    steps: int,
    lanes: int,
    tiles: tuple[int, int],
    loops: tuple[int, int, int],
    types: tuple[DType, DType, DType],
) -> None:
    nest = product_nest(rows, steps, lanes, tiles, loops, types)
    verify_loops(nest)
    rng = np.random.default_rng(rows * 17 + steps)
    x, w = (
        rng.integers(*_limits(memory.dtype), size=memory.shape).astype(memory.dtype.numpy)
        for memory in nest.inputs
    )
    plain = w.transpose(0, 2, 1).reshape(-1, nest.output.shape[1])
    expected = x.astype(np.int64) @ plain.astype(np.int64)
    total = nest.output.dtype.numpy
    np.testing.assert_array_equal(interpret(nest, {"x": x, "w": w}), expected.astype(total))


def _limits(dtype: DType) -> tuple[int, int]:
    """Floats are small whole numbers: their products and sums are exact."""
    if dtype.is_float:
        return -15, 16
    low, high = dtype.limits
    return low, high + 1


def test_tiles_are_printed_with_what_they_hold() -> None:
    text = format_loops(product_nest(2, 3, 4, (1, 2), (1, 2, 1), BYTES))
    assert text.splitlines()[1:] == [
        "  for rows in 0..1:",
        "    for lanes in 0..1:",
        "      tile c: i32[1, 2, 2, 4]",
        "      tile a: u8[1, 2, 12]",
        "      tile b: i8[2, 3, 16]",
        "      tile c[0, 0] = 0",
        "      tile c[0, 1] = 0",
        "      for sum in 0..2:",
        "        tile a[0] = rows x[rows * 2, sum * 12], 24 apart",
        "        tile b[0] = rows w[sum * 3, lanes * 8, 0], 32 apart",
        "        tile c[0, 0] += dot of a[0], b[0]",
        "        tile b[1] = rows w[sum * 3, lanes * 8 + 4, 0], 32 apart",
        "        tile c[0, 1] += dot of a[0], b[1]",
        "      rows y[rows * 2, lanes * 8] = tile c[0, 0], 8 apart",
        "      rows y[rows * 2, lanes * 8 + 4] = tile c[0, 1], 8 apart",
    ]


Change = Callable[[Any], Stmt | None]


def changed(nest: LoopNest, change: Change) -> LoopNest:
    """The nest with what `change` makes of its statements, None of those that stay."""

    def rewritten(body: Body) -> Body:
        result = []
        for statement in body:
            if isinstance(statement, For | Let | If | Allocate):
                statement = replace(statement, body=rewritten(statement.body))
            result.append(change(statement) or statement)
        return tuple(result)

    return replace(nest, body=rewritten(nest.body))


def shaped(name: str, *shape: int, dtype: DType | None = None) -> Change:
    """Give the tiles of this name another shape or type."""

    def change(statement: Stmt) -> Stmt | None:
        if not isinstance(statement, Allocate) or statement.memory.name != name:
            return None
        memory = statement.memory
        other = replace(memory, shape=shape or memory.shape, dtype=dtype or memory.dtype)
        return replace(statement, memory=other)

    return change


def of(kind: type[Stmt], **fields: Any) -> Change:
    """Give all statements of a kind other fields."""
    return lambda statement: replace(statement, **fields) if type(statement) is kind else None


TILE = Load(DType.I32, "c", (integer(0), integer(0)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (shaped("c", 3, 2, 16, 16), "10 tiles are live at once, 8 exist"),
        (shaped("c", 2, 2, 17, 16), "tiles of 17 rows of 64 bytes"),
        (shaped("c", 2, 2, 16, 17), "tiles of 16 rows of 68 bytes"),
        (shaped("a", 2, 16, 62), "tiles of 16 rows of 62 bytes"),
        (shaped("c", 4), "have no rows and columns"),
        (shaped("c", 2, 2, 8, 16), r"tiles of the shapes \[8, 16\], \[16, 64\], \[16, 64\] are no"),
        (shaped("b", 2, 8, 64), r"tiles of the shapes \[16, 16\], \[16, 64\], \[8, 64\] are no"),
        (shaped("c", dtype=DType.F32), "a tile of f32 sums up products of u8 and i8"),
        (shaped("b", 2, 16, 32, dtype=DType.I16), "tiles of i16 and rows of i8"),
        (of(TileZero, indices=(integer(0),)), "a tile of c has 2 indices, not 1"),
        (of(TileZero, indices=(integer(2), integer(0))), "tiles of c: an index runs over 2..2"),
        (of(TileZero, buffer="y"), "y is no buffer of tiles"),
        (of(TileLoad, stride=0), "16 rows of 64 elements, 0 apart"),
        (of(TileStore, stride=15), "16 rows of 16 elements, 15 apart"),
        (of(TileLoad, stride=1000), "16 rows of 64 elements, 1000 apart"),
        (of(TileStore, buffer="w"), "a tile is stored to w, which is no output"),
        (of(TileStore, source=replace(TILE, buffer="a", indices=(integer(0),))), "tiles of u8 and"),
        (of(TileDot, left=replace(TILE, buffer="x")), "x is no buffer of tiles"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(change: Change, problem: str) -> None:
    verify_loops(FULL)
    with pytest.raises(VerifyError, match=problem):
        verify_loops(changed(FULL, change))


def test_which_tile_is_meant_is_known_before_loops_run() -> None:
    def loop(kind: LoopKind) -> LoopNest:
        def change(statement: Stmt) -> Stmt | None:
            if not isinstance(statement, TileZero):
                return None
            return For("t", 0, 2, kind, (replace(statement, indices=(index("t"), integer(0))),))

        return changed(FULL, change)

    verify_loops(loop(LoopKind.UNROLLED))
    for kind in (LoopKind.SERIAL, LoopKind.VECTORISED):
        with pytest.raises(VerifyError, match=r"not known before|vectorised loop holds tiles"):
            verify_loops(loop(kind))
