"""Which register tiles of rows are worth smaller ones, and which of them test for borders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.loops.tiny_kernels import run_loops
from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Load, const, index, integer, unary
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, ValidExtent
from tunefarm.compiler.loops.interpret import value_of
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    For,
    If,
    Let,
    LoopKind,
    Memory,
    Scope,
    Stmt,
    Store,
    Update,
    walk,
)
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
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.space import ChoiceValue
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import Algorithm
from tunefarm.compiler.types.tensor_type import Array, Attribute

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


WINDOW, COLUMNS, TILE = 7, 42, 6


def wide_convolution(dilation: int = 1) -> tuple[FusedKernel, Schedule]:
    """A row of a wide window, of a length that a run says, in tiles of six columns."""
    border = dilation * (WINDOW // 2)
    attributes: dict[str, Attribute] = {
        "pads": (0, border, 0, border),
        "dilations": (1, dilation),
        "layout": "NCHWc",
    }
    operands = [f32(1, 1, 1, COLUMNS, 8), f32(8, 8, 1, WINDOW)]
    static = kernel_of(operands, [("conv", ["x0", "x1"], attributes)], ["x1"])
    sizes = Buffer("in2", DType.I64, (1,))
    limits = (ValidExtent(8, COLUMNS, "in2", 0),)
    kernel = replace(static, inputs=(*static.inputs, sizes), limits=limits)
    space = schedule_space(kernel, target_named("x86-64-v3"))
    direct = next(sketch for sketch in space.sketches if sketch.algorithm is Algorithm.DIRECT)
    names = (choice.name for choice in direct.choices)
    choices = {**dict(zip(names, direct.default, strict=True)), "tile": (TILE, 1)}
    return kernel, direct.build(choices)


def guards_of_rows(tile: Allocate) -> int:
    """How often the sums of a tile ask whether a row of it may be added to."""
    return sum(isinstance(item, If) and "ow" in axes_of(item.condition) for item in walk(tile.body))


def test_tiles_between_the_borders_of_a_dynamic_row_test_for_none() -> None:
    nest = lower(*wide_convolution())
    ways = [
        (item.condition, tile)
        for item in walk(nest.body)
        if isinstance(item, If)
        for tile in item.body
        if isinstance(tile, Allocate) and tile.scope is Scope.REGISTER
    ]
    inside = [condition for condition, tile in ways if not guards_of_rows(tile)]
    assert len(inside) == 1
    border = WINDOW // 2
    for number in range(COLUMNS // TILE):
        first, last = number * TILE - border, number * TILE + TILE - 1 + border
        held = value_of(inside[0], {}, {"ow.o": number})
        assert bool(held) == (first >= 0 and last < COLUMNS), number
    (outside,) = (condition for condition, _ in ways if condition == unary("not", inside[0]))
    assert guards_of_rows(dict(ways)[outside])


def narrow_convolution() -> tuple[FusedKernel, Schedule]:
    """A row of at most four columns, one tile, and a window of three that is unrolled."""
    attributes: dict[str, Attribute] = {"pads": (1, 1)}
    static = kernel_of([f32(1, 9, 4), f32(16, 9, 3)], [("conv", ["x0", "x1"], attributes)], ["x1"])
    sizes = Buffer("in2", DType.I64, (1,))
    limits = (ValidExtent(1, 4, "in2", 0),)
    kernel = replace(static, inputs=(*static.inputs, sizes), limits=limits)
    space = schedule_space(kernel, target_named("x86-64-v3"))
    chosen: dict[str, ChoiceValue] = {"tile": (4, 2), "reduce": ("ic", "kw"), "unroll": (4, 1)}
    chosen["padding"] = "inline"
    sketch = next(one for one in space.sketches if "inline" in one.choices[-1].values)
    names = (choice.name for choice in sketch.choices)
    return kernel, sketch.build({**dict(zip(names, sketch.default, strict=True)), **chosen})


def test_a_tile_that_is_the_whole_row_has_no_test_for_borders_that_the_run_makes() -> None:
    """Where its rows and its window are unrolled, numbers say what lies beyond a border."""

    def asked(body: Body, unrolled: frozenset[str] = frozenset()) -> Iterator[bool]:
        for item in body:
            if isinstance(item, If) and "ow" in axes_of(item.condition):
                yield not axes_of(item.condition) <= unrolled
            if isinstance(item, For | If | Let | Allocate):
                more = set[str]()
                if isinstance(item, For) and item.kind is LoopKind.UNROLLED:
                    more = {item.variable}
                yield from asked(item.body, unrolled | more)

    found = [*asked(lower(*narrow_convolution()).body)]
    assert found and not any(found)
    assert any(asked(lower(*wide_convolution()).body))


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_row_of_one_tile_is_right_at_all_widths(width: int) -> None:
    kernel, schedule = narrow_convolution()
    verify_loops(lower(kernel, schedule))
    rng = np.random.default_rng(width)
    data = rng.standard_normal((1, 9, 4)).astype(np.float32)
    data[..., width:] = 0
    weight = rng.standard_normal((16, 9, 3)).astype(np.float32)
    inputs: dict[str, Array] = {"in0": data, "in1": weight, "in2": np.array([width])}
    expected: Any = evaluate_kernel(kernel, inputs)
    result: Any = run_loops(kernel, schedule, inputs)
    np.testing.assert_allclose(result[..., :width], expected[..., :width], 1e-4, 1e-5)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("width", [1, 5, 6, 7, 23, 36, 41, 42])
def test_a_wide_window_sums_what_is_in_a_dynamic_row(dilation: int, width: int) -> None:
    kernel, schedule = wide_convolution(dilation)
    verify_loops(lower(kernel, schedule))
    rng = np.random.default_rng(width)
    data = rng.standard_normal((1, 1, 1, COLUMNS, 8)).astype(np.float32)
    data[:, :, :, width:] = 0
    weight = rng.standard_normal((8, 8, 1, WINDOW)).astype(np.float32)
    inputs: dict[str, Array] = {"in0": data, "in1": weight, "in2": np.array([width])}
    expected: Any = evaluate_kernel(kernel, inputs)
    result: Any = run_loops(kernel, schedule, inputs)
    np.testing.assert_allclose(result[..., :width, :], expected[..., :width, :], 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("columns", "terms", "left"),
    [(1, 64, [6, 11]), (2, 64, [4, 6, 11]), (3, 64, [2, 4, 6, 11]), (2, 9, [1, 2, 4, 6, 11])],
)
def test_sizes_are_left_out_whose_sums_wait_as_long_as_those_of_the_next(
    columns: int, terms: int, left: list[int]
) -> None:
    def loops(*body: Stmt, **stops: int) -> Stmt:
        for name, stop in stops.items():
            kind = LoopKind.VECTORISED if name == "lane" else LoopKind.UNROLLED
            body = (For(name, 0, stop, kind, body),)
        return body[0]

    memory = Memory("t", DType.F32, (14, columns, 8))
    at, tile = (index("i"), index("j"), index("lane")), {"lane": 8, "j": columns, "i": 14}
    added = Update("t", at, "sum", Load(DType.F32, "x", (index("k"), *at)))
    body = (
        loops(Store("t", at, const(0.0, DType.F32)), **tile),
        For("k", 0, terms, LoopKind.SERIAL, (loops(added, **tile),)),
        loops(Store("y", at, Load(DType.F32, "t", at)), **tile),
    )
    found = sum_tile(Allocate(memory, Scope.REGISTER, body))
    assert found is not None and found.unlike((1, 2, 4, 6, 11), 14) == left
